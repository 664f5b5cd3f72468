"""Learns a WordPiece vocabulary from text: the job of create_vocab.py.

Its options and files are explained in options/vocabulary.py.
"""

import unicodedata
from collections import Counter

from absl import logging

from bert_tf.base import files, processes, signals
from bert_tf.corpus import text
from bert_tf.errors import InputError, listed
from bert_tf.jobs.options.vocabulary import VocabularyConfig
from bert_tf.tokenization import vocabulary
from bert_tf.tokenization.normalization import Normalizer


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
        vocab = vocabulary.learn_vocabulary(
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
    """Returns the number of occurrences of each word in the files."""
    normalizer = Normalizer(config.do_lower_case, config.strip_accents)
    blocks = processes.track(
        text.blocks_of_files(paths),
        size=lambda block: len(block.text),
        title="Counting words",
        unit="bytes",
    )
    texts = (text.decode(block, config.errors) for block in blocks)
    words = vocabulary.count_words(texts, normalizer)
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
