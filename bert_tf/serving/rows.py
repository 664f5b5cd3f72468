"""Texts that take several rows of a model, since they are long.

A text of a hundred pages is hundreds of rows. They are computed some at a
time, and shown text by text: what a server gives out has a row for each text,
or it could not put requests of many users into one batch.
"""

from collections.abc import Callable, Mapping

import tensorflow as tf

from bert_tf.serving.served import Served

# The memory that a request takes goes no further than this.
ROWS_AT_A_TIME = 32


def in_parts(
    compute: Callable[[dict[str, tf.Tensor]], Mapping[str, tf.Tensor]],
    features: Mapping[str, tf.Tensor],
    nothing: Mapping[str, tf.Tensor],
) -> dict[str, tf.Tensor]:
    """What `compute` gives for all rows, computed some of them at a time.

    Args:
      compute: From some rows of the features to tensors of as many rows; it
        is never called with none.
      features: Dict of tensors [R, S].
      nothing: What it would give for none, by the names of what is wanted:
        [0, S, ...].

    Returns:
      Dict with the keys of `nothing`, tensors [R, S, ...].
    """
    num_rows = tf.shape(features["input_ids"])[0]

    def step(first, done):
        last = first + ROWS_AT_A_TIME
        some = compute(
            {name: ids[first:last] for name, ids in features.items()}
        )
        return last, {
            name: tf.concat([values, some[name]], axis=0)
            for name, values in done.items()
        }

    shapes = {
        name: tf.TensorShape([None, None, *values.shape[2:]])
        for name, values in nothing.items()
    }
    _, done = tf.while_loop(
        lambda first, done: first < num_rows,
        step,
        (0, dict(nothing)),
        shape_invariants=(tf.TensorShape([]), shapes),
        # One after another, as that is what saves memory.
        parallel_iterations=1,
    )
    return done


def shown(
    served: Served,
    features: Mapping[str, tf.Tensor],
    texts: tf.Tensor,
    num_texts: tf.Tensor,
) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
    """The rows of each text, and their tokens.

    Args:
      served: Whose rows they are.
      features: Dict of int32 [R, S].
      texts: The text that each row is of, int64 [R], in order.
      num_texts: B.

    Returns:
      How many rows there are of each text, int32 [B]; and a dict of `tokens`
      and the features, [B, N, S] for the most, N, that a text has: behind its
      last there are such of padding alone.
    """
    padding = {"input_ids": served.encoding.vocab.index("[PAD]")}
    by_text = {
        name: tf.RaggedTensor.from_value_rowids(
            values, texts, tf.cast(num_texts, tf.int64), validate=False
        )
        for name, values in features.items()
    }
    seen = {
        name: values.to_tensor(padding.get(name, 0))
        for name, values in by_text.items()
    }
    num_rows = tf.cast(by_text["input_ids"].row_lengths(), tf.int32)
    return num_rows, {"tokens": served.token_names(seen["input_ids"]), **seen}
