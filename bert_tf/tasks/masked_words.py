"""Predicts words for [MASK]: section 3.1, task 1, of the paper."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from bert_tf.config import BertConfig, positive_integer
from bert_tf.data.records import INPUTS, Schema, pretraining_schema
from bert_tf.errors import InputError, shortened
from bert_tf.modeling import kernels
from bert_tf.modeling.heads import BertPretrainer
from bert_tf.tasks.encoding import Encoded, RowEncoding, pad
from bert_tf.tasks.examples import Example
from bert_tf.tasks.task import FineTuningTask
from bert_tf.tokenization.packing import pack

MASK = "[MASK]"
# The inputs of a `BertPretrainer` that predicts masked words only.
MASK_INPUTS = (*INPUTS, "masked_lm_positions")
# A checkpoint without this variable has no masked-LM head.
OUTPUT_BIAS = "cls/predictions/output_bias"


@dataclasses.dataclass(frozen=True)
class MaskEncoding(RowEncoding[Example]):
    """How texts and pairs with `[MASK]` become rows, truncated as in training.

    The tokenizer alone would split `[MASK]`.
    """

    @property
    def schema(self) -> Schema:
        length = self.max_seq_length
        names = (*INPUTS, "masked_lm_positions", "masked_lm_weights")
        return tuple(
            feature
            for feature in pretraining_schema(length, length)
            if feature.name in names
        )

    def fingerprint(self, example: Example) -> bytes:
        return repr((example.text_a, example.text_b)).encode()

    def encode(self, examples: Sequence[Example]) -> Encoded:
        """Returns a row for each example.

        `masked_lm_positions` are the positions of `[MASK]`, with a weight of 1.

        Raises:
          InputError: If a `[MASK]` is truncated.
        """
        vocab, width = self.tokenizer.vocab, self.max_seq_length
        sequences, segments, blanks = [], [], []
        for example in examples:
            first = self._ids(example.text_a)
            second = None
            if example.text_b is not None:
                second = self._ids(example.text_b)
            special = vocab["[CLS]"], vocab["[SEP]"]
            input_ids, segment_ids = pack(first, second, width, *special)
            is_mask = np.equal(input_ids, vocab[MASK])
            before = [*first, *(second or ())].count(vocab[MASK])
            if np.count_nonzero(is_mask) < before:
                raise InputError(mask_cut_off(width))
            sequences.append(input_ids)
            segments.append(segment_ids)
            blanks.append(np.flatnonzero(is_mask).tolist())
        input_ids, input_mask = pad(sequences, width)
        positions, weights = pad(blanks, width)
        batch = {
            "input_ids": input_ids,
            "input_mask": input_mask,
            "segment_ids": pad(segments, width)[0],
            "masked_lm_positions": positions,
            "masked_lm_weights": weights,
        }
        return Encoded(batch, np.ones(len(sequences), int))

    def _ids(self, text: str) -> list[int]:
        first, *others = text.split(MASK)
        ids = self.tokenizer.encode(first)
        for part in others:
            ids += [self.tokenizer.vocab[MASK], *self.tokenizer.encode(part)]
        return ids


def without_padding(features: Mapping) -> dict[str, np.ndarray]:
    """Returns a batch without mask positions that are padding in all rows."""
    most = np.asarray(features["masked_lm_weights"]).sum(axis=1).max()
    names = "masked_lm_positions", "masked_lm_weights"
    return {**features, **{name: features[name][:, :most] for name in names}}


class MaskedWordsTask(FineTuningTask):
    """The task of filling in masked words.

    The elements of a row are its masked positions.

    Args:
      config: The configuration of the model.
      encoding: How texts become rows; `MaskEncoding` to predict.
      top_k: The largest number of words for each `[MASK]`.
      options: Options of `FineTuningTask`.
    """

    kind = head = "pretraining"
    has_teachers = False
    loss_names = ("masked_lm_loss",)
    unused_variables = r"bert/pooler/|cls/seq_relationship/"

    def __init__(
        self,
        config: BertConfig,
        encoding: RowEncoding,
        *,
        top_k: int = 5,
        **options: Any,
    ):
        super().__init__(config, encoding, **options)
        self.top_k = positive_integer("top_k", top_k)

    def make_model(self, **options: Any) -> keras.Model:
        return BertPretrainer(self.config, **options)

    def is_element(self, features: Mapping) -> Any:
        """Returns 1.0 for each masked position, float32 [B, P]."""
        return features["masked_lm_weights"]

    def element_losses(self, features: Mapping, outputs: Mapping) -> Any:
        """Returns the cross-entropies, float32 [B, P]."""
        return kernels.cross_entropy(
            features["masked_lm_ids"], outputs["masked_lm_logits"]
        )

    def row_outputs(self, features: Mapping, outputs: Mapping) -> dict:
        """Returns `best_words`, and `num_blanks`, the number of masks, [B]."""
        return {
            **self.best_words(outputs["masked_lm_logits"]),
            "num_blanks": ops.sum(features["masked_lm_weights"], axis=-1),
        }

    def best_words(self, logits: Any) -> dict[str, Any]:
        """Returns the most probable words for each mask, the best first.

        Args:
          logits: Floats [..., V].

        Returns:
          `ids`, int32 [..., k], and `probabilities`, float32 [..., k].
        """
        # The embedding table may be larger than the vocabulary.
        num_words = len(self.encoding.vocab)
        shares = ops.softmax(logits[..., :num_words])
        values, ids = ops.top_k(shares, min(self.top_k, num_words))
        return {"ids": ops.cast(ids, "int32"), "probabilities": values}

    def answers(
        self, decoded: Mapping[str, np.ndarray], examples: Sequence[Example]
    ) -> list[dict[str, Any]]:
        """Returns `words` and `probabilities`, a list for each mask."""
        inv_vocab = self.encoding.tokenizer.inv_vocab
        answers = []
        for row, count in enumerate(decoded["num_blanks"]):
            ids = decoded["ids"][row, :count].tolist()
            shares = decoded["probabilities"][row, :count].tolist()
            words = [
                [inv_vocab[number] for number in of_mask] for of_mask in ids
            ]
            answers.append({"words": words, "probabilities": shares})
        return answers


def mask_cut_off(max_seq_length: int) -> str:
    """Returns the message for a text whose `[MASK]` is truncated."""
    return (
        f"A {MASK} is beyond max_seq_length, {max_seq_length} tokens. Shorten "
        "the text before it."
    )


def require_mask(text: str) -> None:
    """Raises InputError if there is nothing to predict."""
    if MASK not in text:
        raise InputError(f"The text has no {MASK}: {shortened(text)}.")


def require_masked_lm(path: str, objective: str | None, has_head: bool) -> None:
    """Raises InputError if a checkpoint cannot fill in masked words."""
    if not has_head:
        raise InputError(
            f"{path} has no masked-LM head. Pass a pre-trained model."
        )
    if objective == "causal_lm":
        raise InputError(
            f"{path} was trained to predict the next word (objective "
            "causal_lm) and cannot fill in masked words."
        )
