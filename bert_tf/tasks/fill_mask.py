"""The masked-LM head put to use: what belongs into a blank?"""

import keras
import numpy as np
from keras import ops

from bert_tf.errors import InputError
from bert_tf.text.packing import pack
from bert_tf.text.wordpiece import FullTokenizer

MASK = "[MASK]"

# The candidates of one blank: words and their probabilities, the best first.
Blank = list[tuple[str, float]]


def fill_mask(
    model: keras.Model, tokenizer: FullTokenizer, text: str, top_k: int = 5
) -> list[Blank]:
    """Finds the most probable pieces for every `[MASK]` of a text.

    Each blank is filled on its own, with the other blanks left open.

    Args:
      model: A `BertPretrainer`.
      tokenizer: The tokenizer that the model was trained with.
      text: Text with one or more `[MASK]`.
      top_k: Candidates for each blank.

    Returns:
      A list with the candidates of each blank, in the order of the text.

    Raises:
      InputError: There is no blank, the text is too long for the model, or
        no candidates are asked for.
    """
    if top_k < 1:
        raise InputError(f"expected a top_k of 1 or more. Received: {top_k}")
    vocab = tokenizer.vocab
    input_ids = _with_blanks(tokenizer, text)
    limit = model.config.max_position_embeddings
    if len(input_ids) > limit - 2:
        raise InputError(
            f"expected a text of at most {limit - 2} pieces, for a model of "
            f"{limit} positions. Received: {len(input_ids)}"
        )
    input_ids, segment_ids = pack(
        input_ids, None, limit, vocab["[CLS]"], vocab["[SEP]"]
    )
    positions = [i for i, x in enumerate(input_ids) if x == vocab[MASK]]
    logits = model(
        {
            "input_ids": np.array([input_ids], np.int32),
            "segment_ids": np.array([segment_ids], np.int32),
            "masked_lm_positions": np.array([positions], np.int32),
        }
    )["masked_lm_logits"]  # [1, blanks, V]
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


def _with_blanks(tokenizer: FullTokenizer, text: str) -> list[int]:
    """The ids of a text; the tokenizer alone would tear `[MASK]` apart."""
    first, *others = text.split(MASK)
    if not others:
        raise InputError(f"expected a text with {MASK}. Received: {text!r}")
    ids = tokenizer.encode(first)
    for part in others:
        ids += [tokenizer.vocab[MASK], *tokenizer.encode(part)]
    return ids
