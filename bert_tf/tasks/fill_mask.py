"""The pre-training heads put to use: what belongs into a blank, what follows?

Source: section 3.1, tasks 1 and 2, of the paper.
"""

import keras
import numpy as np
from keras import ops

from bert_tf.errors import InputError
from bert_tf.tokenization.packing import pack
from bert_tf.tokenization.wordpiece import FullTokenizer

MASK = "[MASK]"

# The candidates of one blank: words and their probabilities, the best first.
Blank = list[tuple[str, float]]


def fill_mask(
    model: keras.Model,
    tokenizer: FullTokenizer,
    text: str,
    top_k: int = 5,
    text_b: str | None = None,
) -> list[Blank]:
    """Finds the most probable pieces for every `[MASK]` of a text or a pair.

    Each blank is filled on its own, with the other blanks left open.

    Args:
      model: A `BertPretrainer`.
      tokenizer: The tokenizer that the model was trained with.
      text: Text with one or more `[MASK]`.
      top_k: Candidates for each blank.
      text_b: The second text of a pair; either may have the blanks.

    Returns:
      A list with the candidates of each blank, in the order of the text.

    Raises:
      InputError: There is no blank, the text is too long for the model, or
        no candidates are asked for.
    """
    if top_k < 1:
        raise InputError(f"expected a top_k of 1 or more. Received: {top_k}")
    vocab = tokenizer.vocab
    features = _features(model, tokenizer, text, text_b)
    [positions] = np.nonzero(features["input_ids"][0] == vocab[MASK])
    if not len(positions):
        received = repr(text) if text_b is None else f"{text!r}, {text_b!r}"
        raise InputError(f"expected a text with {MASK}. Received: {received}")
    features["masked_lm_positions"] = np.array([positions], np.int32)
    logits = model(features)["masked_lm_logits"]  # [1, blanks, V]
    # A model may have room for more words than its vocabulary has.
    logits = logits[0, :, : len(vocab)]
    best = min(top_k, len(vocab))
    values, ids = ops.top_k(ops.softmax(logits), best)
    return [
        list(zip(tokenizer.convert_ids_to_tokens(row_ids), row, strict=True))
        for row_ids, row in zip(
            ops.convert_to_numpy(ids).tolist(),
            ops.convert_to_numpy(values).tolist(),
            strict=True,
        )
    ]


def next_sentence(
    model: keras.Model, tokenizer: FullTokenizer, text_a: str, text_b: str
) -> float:
    """How probable it is that one text follows the other, from 0 to 1.

    Args:
      model: A `BertPretrainer`.
      tokenizer: The tokenizer that the model was trained with.
      text_a: The first text; it may have a `[MASK]`, as the second may.
      text_b: The one behind it.

    Raises:
      InputError: The pair is too long for the model.
    """
    features = _features(model, tokenizer, text_a, text_b)
    logits = model.cls.next_sentence(model.bert.pooled_output(features))
    # The first of the two classes is "it follows".
    return float(ops.softmax(logits)[0, 0])


def _features(
    model: keras.Model,
    tokenizer: FullTokenizer,
    text_a: str,
    text_b: str | None,
) -> dict[str, np.ndarray]:
    """A batch of one text or one pair, int32 [1, S]."""
    ids_a = _with_blanks(tokenizer, text_a)
    ids_b = None if text_b is None else _with_blanks(tokenizer, text_b)
    limit = model.config.max_position_embeddings
    kind, room = ("text", limit - 2) if ids_b is None else ("pair", limit - 3)
    length = len(ids_a) + len(ids_b or [])
    if length > room:
        raise InputError(
            f"expected a {kind} of at most {room} pieces, for a model of "
            f"{limit} positions. Received: {length}"
        )
    cls_id, sep_id = tokenizer.vocab["[CLS]"], tokenizer.vocab["[SEP]"]
    input_ids, segment_ids = pack(ids_a, ids_b, limit, cls_id, sep_id)
    return {
        "input_ids": np.array([input_ids], np.int32),
        "segment_ids": np.array([segment_ids], np.int32),
    }


def _with_blanks(tokenizer: FullTokenizer, text: str) -> list[int]:
    """The ids of a text; the tokenizer alone would tear `[MASK]` apart."""
    first, *others = text.split(MASK)
    ids = tokenizer.encode(first)
    for part in others:
        ids += [tokenizer.vocab[MASK], *tokenizer.encode(part)]
    return ids
