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
import unicodedata
from collections import Counter

from absl import logging

from bert_tf.base import files, processes, signals
from bert_tf.base.options import Options, option
from bert_tf.corpus import text
from bert_tf.errors import InputError, listed
from bert_tf.tokenization import vocabulary_file
from bert_tf.tokenization.normalization import Normalizer


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
        "Lowest frequency at which a character or a pair of tokens is added.",
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
        "If bytes are not UTF-8, strict stops and replace drops them.",
        default="strict",
        choices=("strict", "replace"),
    )


def run(config: VocabularyConfig) -> list[str]:
    """Learns a vocabulary and writes it.

    Returns:
      The tokens in the order of their ids.
    """
    with signals.stopping():
        paths = files.expand(config.input_file, "input_file")
        files.check_outputs({"output": [config.output_file]}, {"text": paths})
        words = _count_words(config, paths)
        logging.info("Learning from %d distinct words", len(words))
        vocab = vocabulary_file.learn_vocabulary(
            words,
            config.vocab_size,
            num_unused_tokens=config.num_unused_tokens,
            min_frequency=config.min_frequency,
            limit_alphabet=config.limit_alphabet,
        )
        with files.atomic_writer(config.output_file) as file:
            file.write("".join(f"{token}\n" for token in vocab).encode())
        logging.info("Wrote %d tokens to %s", len(vocab), config.output_file)
        return vocab


def _count_words(config: VocabularyConfig, paths: list[str]) -> Counter[str]:
    """Returns the frequency of each word in the files."""
    normalizer = Normalizer(config.do_lower_case, config.strip_accents)
    blocks = processes.track(
        text.blocks_of_files(paths),
        size=lambda block: len(block.text),
        title="Counting words",
        unit="bytes",
    )
    texts = (text.decode(block, config.errors) for block in blocks)
    words = vocabulary_file.count_words(texts, normalizer)
    if not words:
        raise InputError(
            f"There are no words in {listed(paths, most=3)}. Pass other files "
            "as `input_file`."
        )
    if not normalizer.strip_accents:
        _warn_of_decomposed(words)
    return words


def _warn_of_decomposed(words: Counter[str]) -> None:
    """Warns of words that are not in Unicode's form NFC.

    If accents are kept, a text in form NFD, such as file names on macOS, has
    different words from the same text in form NFC.
    """
    decomposed = [w for w in words if not unicodedata.is_normalized("NFC", w)]
    if decomposed:
        first = decomposed[0]
        logging.warning(
            "%d of %d distinct words are not in Unicode's form NFC, such as "
            "%a, which would be %s. They count as different words, since "
            "accents are kept: convert all texts to NFC.",
            len(decomposed),
            len(words),
            first,
            unicodedata.normalize("NFC", first),
        )
