"""Texts that take several rows of a model, in a graph.

The graph makes the same windows as `tasks.encoding` does in
NumPy.
"""

from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf

from bert_tf.tasks.encoding import Encoding
from bert_tf.tokenization.graph import BertTokenizer
from bert_tf.tokenization.packing import truncated_lengths

Tensors = Mapping[str, tf.Tensor]

# Limits the memory of a request.
BATCH_SIZE = 32


def in_batches(
    compute: Callable[[dict[str, tf.Tensor]], Tensors],
    features: Tensors,
    nothing: Tensors | None = None,
) -> dict[str, tf.Tensor]:
    """Returns the result of `compute` for all rows, `BATCH_SIZE` at a time.

    Args:
      compute: Maps one or more rows of the features to rows of outputs.
      features: Tensors [R, ...] by name.
      nothing: Initial rows, usually empty, [0, ...]; their keys select outputs.
        By default no rows of all outputs, whose other sizes must be known.

    Returns:
      Tensors with the keys of `nothing`.
    """
    num_rows = tf.shape(next(iter(features.values())))[0]
    if nothing is None:
        specs = {
            name: tf.TensorSpec([None, *ids.shape[1:]], ids.dtype)
            for name, ids in features.items()
        }
        graph = tf.function(compute, autograph=False)
        outputs = graph.get_concrete_function(specs).structured_outputs
        nothing = {
            name: tf.zeros([0, *output.shape[1:]], output.dtype)
            for name, output in outputs.items()
        }

    def step(first, outputs):
        last = first + BATCH_SIZE
        some = compute(
            {name: ids[first:last] for name, ids in features.items()}
        )
        return last, {
            name: tf.concat([values, some[name]], axis=0)
            for name, values in outputs.items()
        }

    shapes = {
        name: tf.TensorShape([None, *values.shape[1:]])
        for name, values in nothing.items()
    }
    _, outputs = tf.while_loop(
        lambda first, outputs: first < num_rows,
        step,
        (0, dict(nothing)),
        shape_invariants=(tf.TensorShape([]), shapes),
        # Parallel iterations would need more memory.
        parallel_iterations=1,
    )
    return outputs


def window_ranges(
    num_tokens: tf.Tensor, room: tf.Tensor, doc_stride: int
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Splits texts like `tasks.encoding.window_spans`.

    Args:
      num_tokens: The number of tokens of each text, int64 [B].
      room: The largest number of tokens in a window of each text, int64 [B].
      doc_stride: Tokens from the start of a window to the start of the next.

    Returns:
      For each window the index of its text, the number of its first token in
      the text, and its number of tokens, int64 [W].
    """
    step = tf.maximum(tf.minimum(room, doc_stride), 1)
    # The negative signs round the division up.
    steps = -(-tf.maximum(num_tokens - room, 0) // step)
    numbers = tf.ragged.range(steps + 1)
    text = numbers.value_rowids()  # [W]
    start = numbers.values * tf.gather(step, text)
    length = tf.minimum(
        tf.gather(room, text), tf.gather(num_tokens, text) - start
    )
    return text, start, length


def max_context(
    tokens: tf.RaggedTensor, num_tokens: tf.Tensor
) -> tf.RaggedTensor:
    """Returns whether each window owns each of its tokens.

    Vectorized `_check_is_max_context` of the original: the score of a token in
    a window is the smaller number of tokens to its left and right, plus 1 % of
    the window's length. The first window with the highest score owns it.
    """
    window = tokens.value_rowids()  # [P], all tokens of all windows
    left = tf.ragged.range(tokens.row_lengths()).values
    length = tf.gather(tokens.row_lengths(), window)
    around = tf.minimum(left, length - 1 - left)
    # In float64, as in NumPy, so that the same scores are equal in both.
    score = tf.cast(around, tf.float64) + 0.01 * tf.cast(length, tf.float64)
    token = tokens.values
    best = tf.math.unsorted_segment_max(score, token, num_tokens)
    is_best = score == tf.gather(best, token)
    owner = tf.math.unsorted_segment_min(
        tf.where(is_best, window, window.dtype.max), token, num_tokens
    )
    return tokens.with_values(tf.gather(owner, token) == window)


def pack_windows(
    tokenizer: BertTokenizer,
    ids: Sequence[tf.RaggedTensor],
    encoding: Encoding,
) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
    """Returns the windows of texts or pairs, as `tasks.encoding` makes them.

    Args:
      tokenizer: Packs the tokens.
      ids: The tokens of the texts, or of the first and second texts of pairs,
        int32, ragged [B, (T)].
      encoding: Has `max_seq_length` and `doc_stride`.

    Returns:
      The index of the text of each window, int64 [W], and the inputs of the
      model, int32 [W, S].
    """
    # A text without a second one is a pair with an empty one.
    parts = [ids[0], ids[1] if len(ids) > 1 else ids[0][:, :0]]
    first, second = (part.row_lengths() for part in parts)
    room = encoding.max_seq_length - tf.where(second > 0, 3, 2)
    keeps = truncated_lengths(
        first, second, tf.cast(room, tf.int64), tf.minimum, tf.maximum
    )
    is_split = [first > second, first <= second]
    text, start, length = window_ranges(
        tf.where(is_split[0], first, second),
        tf.where(is_split[0], *keeps),
        encoding.doc_stride,
    )

    def shown(part, keep, is_split):
        is_split = tf.gather(is_split, text)
        begin = tf.gather(part.row_starts(), text)
        begin += tf.where(is_split, start, 0)
        size = tf.where(is_split, length, tf.gather(keep, text))
        return tf.gather(part.values, tf.ragged.range(begin, begin + size))

    rows = map(shown, parts, keeps, is_split)
    return text, tokenizer.pack([*rows], empty_second=False)
