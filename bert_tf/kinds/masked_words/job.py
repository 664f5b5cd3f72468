"""Predicts masked words with a pre-trained model: the job of fill_mask.py.

Its options and files are explained in options.py.
"""

import sys
from collections.abc import Iterator
from typing import NamedTuple

from keras import ops

from bert_tf.checkpoints.weights import restore
from bert_tf.errors import InputError, not_utf8
from bert_tf.jobs.start import find_start
from bert_tf.kinds.masked_words.options import FillMaskConfig
from bert_tf.modeling.heads import BertPretrainer
from bert_tf.modeling.variables import checkpoint_variables
from bert_tf.serving.export import export, require_export_dir
from bert_tf.serving.served import ServedMaskedLM
from bert_tf.tasks.examples import SEPARATOR, Example, split_pair
from bert_tf.tasks.masked_words import (
    MASK,
    MASK_INPUTS,
    OUTPUT_BIAS,
    MaskedWordsTask,
    MaskEncoding,
    require_mask,
    require_masked_lm,
    without_padding,
)
from bert_tf.tasks.task import as_numpy

# A model without a next-sentence head lacks one of these variables.
NEXT_SENTENCE = ("bert/pooler/dense/bias", "cls/seq_relationship/output_bias")


class Filled(NamedTuple):
    """A text or a pair with the predictions of the model.

    Attributes:
      text: The text.
      text_b: The second text of a pair, or None.
      blanks: For each [MASK], the most probable words and their probabilities.
      next_sentence: The probability that `text_b` follows `text`, or None.
    """

    text: str
    text_b: str | None
    blanks: list[list[tuple[str, float]]]
    next_sentence: float | None


def run(config: FillMaskConfig) -> list[Filled]:
    """Prints the most probable words for each [MASK], or exports the model.

    Returns:
      What was printed; an empty list after an export.
    """
    config.check()
    start = find_start(config)
    # Position embeddings beyond the training length were never trained.
    length = start.trained_with.get("max_seq_length")
    encoding = start.encoding(
        MaskEncoding, length or start.config.max_position_embeddings
    )
    require_masked_lm(start.path, start.objective, OUTPUT_BIAS in start.weights)
    if config.do_export:
        require_export_dir(config.export_dir)
    model = BertPretrainer(start.config)
    model.build()
    unused = MaskedWordsTask.unused_variables
    restore(checkpoint_variables(model), start.weights, unused)
    if config.do_export:
        export(
            ServedMaskedLM(model, encoding, config.top_k),
            config.export_dir,
            source=config.init_checkpoint,
        )
        return []
    # The next-sentence head of a model with the recorded head masked_lm has
    # random weights.
    has_next_sentence = start.head != "masked_lm" and all(
        name in start.weights for name in NEXT_SENTENCE
    )
    task = MaskedWordsTask(start.config, encoding, top_k=config.top_k)
    filled = []
    for place, text, text_b in _texts(config):
        try:
            if text_b is not None and not has_next_sentence:
                raise InputError(
                    f"{start.path} has no next-sentence head, which a pair of "
                    "texts needs. Pass a checkpoint of pre-training with that "
                    "head, or texts without a second text."
                )
            filled.append(fill(model, task, text, text_b))
        except InputError as error:
            raise InputError(f"{place}{error}") from error
        _show(filled[-1])
    return filled


def fill(
    model: BertPretrainer,
    task: MaskedWordsTask,
    text: str,
    text_b: str | None = None,
) -> Filled:
    """Returns the words for every `[MASK]` of a text or a pair.

    Each blank is filled separately; the other blanks stay masked. Texts are
    truncated as in training.

    Raises:
      InputError: If a single text has no `[MASK]`, or a `[MASK]` is truncated.
    """
    if text_b is None:
        require_mask(text)
    examples = [Example("", text, text_b)]
    features = without_padding(task.encoding.features(examples).arrays)
    outputs = model({name: features[name] for name in MASK_INPUTS})
    [answer] = task.answers(
        as_numpy(task.row_outputs(features, outputs)), examples
    )
    blanks = zip(answer["words"], answer["probabilities"], strict=True)
    follows = None
    if text_b is not None:
        # Class 0 means that `text_b` follows.
        shares = ops.softmax(outputs["next_sentence_logits"])
        follows = float(shares[0, 0])
    listed = [list(zip(*blank, strict=True)) for blank in blanks]
    return Filled(text, text_b, listed, follows)


def _texts(config: FillMaskConfig) -> Iterator[tuple[str, str, str | None]]:
    """Yields a prefix for error messages, a text, and its second text."""
    if config.text is not None:
        yield "", config.text, config.text_b
        return
    for number, line in enumerate(sys.stdin.buffer, start=1):
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise not_utf8(error, "standard input", number) from error
        if text.strip():
            yield f"standard input:{number}: ", *split_pair(text)


def _show(filled: Filled) -> None:
    text, text_b = filled.text, filled.text_b
    print(text if text_b is None else f"{text}{SEPARATOR}{text_b}")
    for number, blank in enumerate(filled.blanks, start=1):
        words = ", ".join(f"{word} ({p:.1%})" for word, p in blank)
        print(f"  {MASK} {number}: {words}")
    if filled.next_sentence is not None:
        print(f"  next sentence: {filled.next_sentence:.1%}")
