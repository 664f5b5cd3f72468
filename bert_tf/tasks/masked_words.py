"""Predictions of a pre-trained model: words for blanks, and the next sentence.

Source: section 3.1, tasks 1 and 2, of the paper.
"""

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
from keras import ops

from bert_tf.config import BertConfig
from bert_tf.errors import InputError, shortened, wrong_value
from bert_tf.modeling import kernels
from bert_tf.modeling.heads import BertPretrainer
from bert_tf.tasks.encoding import TextEncoding
from bert_tf.tasks.task import FineTuningTask
from bert_tf.tokenization.packing import pack
from bert_tf.tokenization.wordpiece import FullTokenizer

MASK = "[MASK]"
# A checkpoint without it has no masked-LM head.
OUTPUT_BIAS = "cls/predictions/output_bias"

# The candidates of a blank, words and their probabilities, the best first.
Blank = list[tuple[str, float]]


class MaskedWordsTask(FineTuningTask):
    """The task of filling in masked words.

    The elements of a row are its masked positions.

    Args:
      config: The configuration of the model.
      encoding: How texts become rows.
      top_k: The largest number of words for each blank.
      options: Options of `FineTuningTask`.
    """

    kind = head = "pretraining"
    has_teachers = False
    loss_names = ("masked_lm_loss",)
    unused_variables = r"bert/pooler/|cls/seq_relationship/"

    def __init__(
        self,
        config: BertConfig,
        encoding: TextEncoding,
        *,
        top_k: int = 5,
        **options: Any,
    ):
        require_top_k(top_k)
        super().__init__(config, encoding, **options)
        self.top_k = top_k

    def make_model(self, **options: Any) -> keras.Model:
        return BertPretrainer(self.config, **options)

    def is_element(self, features: Mapping) -> Any:
        """Returns 1.0 for each masked position, float32 [B, P]."""
        return features["masked_lm_weights"]

    def element_losses(self, features: Mapping, outputs: Mapping) -> Any:
        """Returns the losses, float32 [B, P]; as `PretrainingTask.losses`."""
        return kernels.cross_entropy(
            features["masked_lm_ids"], outputs["masked_lm_logits"]
        )

    def decode(self, outputs: Mapping) -> dict:
        """See `best_words`."""
        num_words = len(self.encoding.vocab)
        return best_words(outputs["masked_lm_logits"], num_words, self.top_k)


def best_words(logits: Any, num_words: int, top_k: int) -> dict[str, Any]:
    """Returns the best words for each blank, the most probable first.

    Args:
      logits: Floats [..., V].
      num_words: The size of the vocabulary. The embedding table, and V, may be
        larger.
      top_k: The largest number of words, at least 1.

    Returns:
      `ids`, int32 [..., k], and `probabilities`, float32 [..., k].
    """
    shares = ops.softmax(logits[..., :num_words])
    values, ids = ops.top_k(shares, min(top_k, num_words))
    return {"ids": ops.cast(ids, "int32"), "probabilities": values}


def require_top_k(top_k: int) -> None:
    """Raises InputError unless `top_k` is at least 1."""
    if top_k < 1:
        raise wrong_value("top_k", "at least 1", top_k)


def mask_cut_off(max_seq_length: int) -> str:
    """Returns the error for a text of which a `[MASK]` is truncated."""
    return (
        f"A {MASK} is beyond max_seq_length, {max_seq_length} tokens. Shorten "
        "the text before it."
    )


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


def fill_mask(
    model: keras.Model,
    encoding: TextEncoding,
    text: str,
    top_k: int = 5,
    text_b: str | None = None,
) -> list[Blank]:
    """Returns the most probable tokens for every `[MASK]` of a text or a pair.

    Each blank is filled separately; the other blanks stay masked. Texts are
    truncated as in training.

    The model is a `BertPretrainer`, which was trained with the encoding.

    Raises:
      InputError: If there is no `[MASK]`, one is cut off, or `top_k` is not at
        least 1.
    """
    require_top_k(top_k)
    tokenizer = encoding.tokenizer
    vocab = tokenizer.vocab
    features = _features(encoding, text, text_b)
    [positions] = np.nonzero(features["input_ids"][0] == vocab[MASK])
    if not len(positions):
        texts = text if text_b is None else (text, text_b)
        raise InputError(f"The text has no {MASK}: {shortened(texts)}.")
    features["masked_lm_positions"] = np.array([positions], np.int32)
    logits = model(features)["masked_lm_logits"]  # [1, blanks, V]
    answer = best_words(logits, len(vocab), top_k)
    return [
        list(zip(tokenizer.convert_ids_to_tokens(row_ids), row, strict=True))
        for row_ids, row in zip(
            ops.convert_to_numpy(answer["ids"])[0].tolist(),
            ops.convert_to_numpy(answer["probabilities"])[0].tolist(),
            strict=True,
        )
    ]


def next_sentence(
    model: keras.Model, encoding: TextEncoding, text_a: str, text_b: str
) -> float:
    """Returns the probability that the second text follows the first.

    `[MASK]` is allowed in both. Raises InputError if one is cut off.
    """
    features = _features(encoding, text_a, text_b)
    logits = model.cls.next_sentence(model.bert.pooled_output(features))
    # Class 0 means that it follows.
    return float(ops.softmax(logits)[0, 0])


def _features(
    encoding: TextEncoding, text_a: str, text_b: str | None
) -> dict[str, np.ndarray]:
    """Returns a batch of one text or one pair, int32 [1, S]."""
    tokenizer, limit = encoding.tokenizer, encoding.max_seq_length
    ids_a = _encode(tokenizer, text_a)
    ids_b = None if text_b is None else _encode(tokenizer, text_b)
    cls_id, sep_id, mask_id = (
        tokenizer.vocab[token] for token in ("[CLS]", "[SEP]", MASK)
    )
    input_ids, segment_ids = pack(ids_a, ids_b, limit, cls_id, sep_id)
    if input_ids.count(mask_id) < [*ids_a, *(ids_b or ())].count(mask_id):
        raise InputError(mask_cut_off(limit))
    return {
        "input_ids": np.array([input_ids], np.int32),
        "segment_ids": np.array([segment_ids], np.int32),
    }


def _encode(tokenizer: FullTokenizer, text: str) -> list[int]:
    """Returns the ids of a text; the tokenizer alone would split `[MASK]`."""
    first, *others = text.split(MASK)
    ids = tokenizer.encode(first)
    for part in others:
        ids += [tokenizer.vocab[MASK], *tokenizer.encode(part)]
    return ids
