"""Learns a WordPiece vocabulary from text.

    python create_vocab.py \\
        --input_file='corpus/*.txt' \\
        --output_file=vocab.txt \\
        --vocab_size=30522

A gigabyte of text takes about four minutes on two cores. The distinct words
must fit into memory. The vocabulary has exactly the requested size and is the
same in every run. Use the same values of --do_lower_case and --strip_accents
wherever the vocabulary is used.
"""

import dataclasses

from bert_tf.base.options import Options, option


@dataclasses.dataclass(frozen=True, kw_only=True)
class VocabularyConfig(Options):
    """Options of `create_vocab.py`."""

    input_file: str = option(
        "UTF-8 text files or globs, separated by commas (.gz and gs:// too). "
        "Lines may be sentences, paragraphs or whole documents.",
    )
    output_file: str = option("Vocabulary file to write, one token per line.")
    vocab_size: int = option(
        "Number of tokens, special tokens included.",
        default=30522,
        at_most=10**7,
    )
    do_lower_case: bool = option(
        "Whether to learn an uncased vocabulary.", default=True
    )
    strip_accents: bool | None = option(
        "Whether to strip accents and decompose letters (Hangul syllables into "
        "jamo). Default: the same as --do_lower_case.",
        default=None,
    )
    num_unused_tokens: int = option(
        "Number of tokens [unused0], [unused1] ... for custom words.",
        default=0,
        at_least=0,
        at_most=10**7,
    )
    min_frequency: int = option(
        "Lowest frequency at which a character or a pair of pieces is added.",
        default=2,
        at_least=1,
    )
    limit_alphabet: int | None = option(
        "Largest number of characters to add, the most frequent first. "
        "Default: as many as fit. About 1000 keeps stray characters out of the "
        "vocabulary of an alphabetic language.",
        default=None,
        at_least=1,
    )
    errors: str = option(
        "What to do about bytes that are not UTF-8: stop, or drop them.",
        default="strict",
        choices=("strict", "replace"),
    )
