"""Learns a WordPiece vocabulary from text.

    python create_vocab.py \\
        --input_file='corpus/*.txt' \\
        --output_file=vocab.txt \\
        --vocab_size=30522

A gigabyte takes some four minutes on two cores; the distinct words have to fit
into memory. The file has exactly the size that was asked for and is the same
in every run. Give --do_lower_case and --strip_accents the same values wherever
the vocabulary is used.
"""

import unicodedata
from collections import Counter
from collections.abc import Iterator

from absl import flags, logging

import bert_tf.flags
from bert_tf import files
from bert_tf.data import jobs, progress, text_files
from bert_tf.errors import InputError
from bert_tf.text import learning
from bert_tf.text.normalization import Normalizer

FLAGS = flags.FLAGS

# Of many files without a word, so many are named.
NAMED_FILES = 3

flags.DEFINE_string(
    "input_file",
    None,
    "Text files or globs, separated by commas (.gz and gs:// too): UTF-8. "
    "Lines may be sentences, paragraphs or whole documents.",
)
flags.DEFINE_string(
    "output_file", None, "The vocabulary to write, one token a line."
)
flags.DEFINE_integer(
    "vocab_size", 30522, "Tokens to give, special ones included."
)
flags.DEFINE_bool("do_lower_case", True, "Learn an uncased vocabulary.")
flags.DEFINE_bool(
    "strip_accents",
    None,
    "Drop accents and decompose letters (Hangul syllables into jamo); by "
    "default as --do_lower_case.",
)
flags.DEFINE_integer(
    "num_unused_tokens",
    0,
    "Tokens [unused0], [unused1] ... to reserve for words of your own.",
    lower_bound=0,
)
flags.DEFINE_integer(
    "min_frequency",
    2,
    "How often a character or a pair of pieces must occur to be taken.",
    lower_bound=1,
)
flags.DEFINE_integer(
    "limit_alphabet",
    None,
    "The most characters to take, the frequent first; by default what fits. "
    "About 1000 keeps stray characters out of the vocabulary of a language "
    "with an alphabet.",
    lower_bound=1,
)
flags.DEFINE_enum(
    "errors",
    "strict",
    ["strict", "replace"],
    "What to do about bytes that are not UTF-8: stop, or drop them.",
)


def texts(paths: list[str], errors: str) -> Iterator[str]:
    """Yields the files' text in blocks of whole lines."""
    blocks = progress.track(
        text_files.blocks_of_files(paths),
        size=lambda block: len(block.text),
        title="Counting words",
        unit="bytes",
    )
    for block in blocks:
        yield text_files.decode(block, errors)


def counted_words(paths: list[str]) -> Counter[str]:
    """Counts the files' words; an InputError names files without any."""
    normalizer = Normalizer(FLAGS.do_lower_case, FLAGS.strip_accents)
    words = learning.count_words(texts(paths, FLAGS.errors), normalizer)
    if not words:
        named = ", ".join(paths[:NAMED_FILES])
        more = len(paths) - NAMED_FILES
        raise InputError(
            "Expected text to learn from. Received: no words in "
            f"{named}{f' and {more} more files' if more > 0 else ''}; give "
            "other files to --input_file"
        )
    if not normalizer.strip_accents:
        warn_of_decomposed(words)
    return words


def warn_of_decomposed(words: Counter[str]) -> None:
    """Warns of words in another form than Unicode's NFC.

    Where accents are dropped all words are decomposed, and forms are no
    matter. Where they are kept, a text in NFD, as macOS writes the names of
    files, has other words than the same text in NFC.
    """
    decomposed = [w for w in words if not unicodedata.is_normalized("NFC", w)]
    if decomposed:
        first = decomposed[0]
        logging.warning(
            "%d of %d distinct words are not composed, such as %a, which would "
            "be %s in Unicode's form NFC: where accents are kept these are two "
            "words; bring all texts to NFC before they come here",
            len(decomposed),
            len(words),
            first,
            unicodedata.normalize("NFC", first),
        )


def learn() -> None:
    """Counts the words, learns the vocabulary and writes it."""
    paths = files.expand(FLAGS.input_file, flag="input_file")
    files.check_outputs({"output": [FLAGS.output_file]}, {"text": paths})
    words = counted_words(paths)
    logging.info("Learning from %d distinct words", len(words))
    vocab = learning.learn_vocabulary(
        words,
        FLAGS.vocab_size,
        num_unused_tokens=FLAGS.num_unused_tokens,
        min_frequency=FLAGS.min_frequency,
        limit_alphabet=FLAGS.limit_alphabet,
    )
    with files.atomic_writer(FLAGS.output_file) as file:
        file.write("".join(f"{token}\n" for token in vocab).encode())
    logging.info("Wrote %d tokens to %s", len(vocab), FLAGS.output_file)


def main() -> None:
    """Does the job; Ctrl-C and SIGTERM end it without a trace."""
    with jobs.clean_stop():
        learn()


if __name__ == "__main__":
    bert_tf.flags.run(main, required=["input_file", "output_file"])
