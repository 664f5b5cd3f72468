"""Predicts masked words with a pre-trained model: the job of fill_mask.py.

Its options and files are explained in options.py.
"""

import sys
from collections.abc import Iterator
from typing import NamedTuple

from bert_tf.checkpoints.checkpoint import Pretrained
from bert_tf.checkpoints.weights import restore
from bert_tf.errors import InputError
from bert_tf.jobs.start import find_start
from bert_tf.kinds.masked_words.options import FillMaskConfig
from bert_tf.modeling.heads import BertPretrainer
from bert_tf.modeling.variables import checkpoint_variables
from bert_tf.serving.export import export, require_export_dir
from bert_tf.serving.masked_words import ServedMaskedLM
from bert_tf.tasks.encoding import TextEncoding
from bert_tf.tasks.examples import SEPARATOR, split_pair
from bert_tf.tasks.masked_words import (
    MASK,
    OUTPUT_BIAS,
    Blank,
    fill_mask,
    next_sentence,
    require_masked_lm,
)

# Variables that filling in masked words does not use.
UNUSED = r"bert/pooler/|cls/seq_relationship/"
# A model without a next-sentence head lacks one of these variables.
NEXT_SENTENCE = ("bert/pooler/dense/bias", "cls/seq_relationship/output_bias")


class Filled(NamedTuple):
    """A text or a pair with the predictions of the model.

    Attributes:
      text: The text.
      text_b: The second text of a pair, or None.
      blanks: For each [MASK] the most probable words with their probabilities.
      next_sentence: The probability that `text_b` follows `text`, or None.
    """

    text: str
    text_b: str | None
    blanks: list[Blank]
    next_sentence: float | None


def run(config: FillMaskConfig) -> list[Filled]:
    """Prints the most probable words for each [MASK], or exports the model.

    Returns:
      What was printed; an empty list after an export.
    """
    config.check()
    start = find_start(config)
    # Position embeddings beyond the training length are random.
    length = start.trained_with.get("max_seq_length")
    encoding = start.encoding(
        TextEncoding, length or start.config.max_position_embeddings
    )
    require_masked_lm(start.path, start.objective, OUTPUT_BIAS in start.weights)
    if config.do_export:
        require_export_dir(config.export_dir)
    model = BertPretrainer(start.config)
    model.build()
    restore(checkpoint_variables(model), start.weights, UNUSED)
    if config.do_export:
        export(
            ServedMaskedLM(model, encoding, config.top_k),
            config.export_dir,
            source=config.init_checkpoint,
        )
        return []
    filled = []
    for place, text, text_b in _texts(config):
        blanks, follows = [], None
        try:
            if text_b is None or MASK in text or MASK in text_b:
                blanks = fill_mask(model, encoding, text, config.top_k, text_b)
            if text_b is not None:
                _require_next_sentence(start)
                follows = next_sentence(model, encoding, text, text_b)
        except InputError as error:
            raise InputError(f"{place}{error}") from error
        filled.append(Filled(text, text_b, blanks, follows))
        _show(filled[-1])
    return filled


def _require_next_sentence(pretrained: Pretrained) -> None:
    # If the model records that it was trained without this head, the head has
    # random weights.
    is_random = pretrained.head == "masked_lm"
    if is_random or any(n not in pretrained.weights for n in NEXT_SENTENCE):
        raise InputError(
            f"{pretrained.path} has no next-sentence head, which a pair of "
            "texts needs. Pass a checkpoint of pre-training with that head, or "
            "texts without a second text."
        )


def _texts(config: FillMaskConfig) -> Iterator[tuple[str, str, str | None]]:
    """Yields a prefix for error messages, a text, and its second text."""
    if config.text is not None:
        yield "", config.text, config.text_b
        return
    for number, line in enumerate(sys.stdin.buffer, start=1):
        place = f"line {number} of the standard input"
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            before = line[: error.start].decode("utf-8")[-20:]
            raise InputError(
                f"{place} is not UTF-8: byte 0x{line[error.start]:02x} after "
                f"{before!r}."
            ) from error
        if text.strip():
            yield f"{place}: ", *split_pair(text)


def _show(filled: Filled) -> None:
    text, text_b = filled.text, filled.text_b
    print(text if text_b is None else f"{text}{SEPARATOR}{text_b}")
    for number, blank in enumerate(filled.blanks, start=1):
        words = ", ".join(f"{word} ({p:.1%})" for word, p in blank)
        print(f"  {MASK} {number}: {words}")
    if filled.next_sentence is not None:
        print(f"  next sentence: {filled.next_sentence:.1%}")
