"""A tiny model, its texts and gradients. Not a test."""

import keras
import numpy as np
import tensorflow as tf

from bert_tf.config import BertConfig

S, V, H = 11, 23, 8
CONFIG = BertConfig(
    vocab_size=V,
    hidden_size=H,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=13,
    max_position_embeddings=S,
    type_vocab_size=2,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)


def texts(lengths, random) -> dict[str, np.ndarray]:
    """Returns random token ids padded to S; lengths [n] or [n, choices]."""
    mask = np.arange(S) < np.expand_dims(lengths, -1)
    return {
        "input_ids": random.integers(1, V, mask.shape).astype("int32") * mask,
        "input_mask": mask.astype("int32"),
        "segment_ids": np.zeros(mask.shape, "int32"),
    }


def as_arrays(tensors) -> dict[str, np.ndarray]:
    return {k: keras.ops.convert_to_numpy(v) for k, v in tensors.items()}


def cut(features, length) -> dict[str, np.ndarray]:
    """Returns the same examples with less padding."""
    return {
        name: values[:, :length] if values.shape[1:2] == (S,) else values
        for name, values in features.items()
    }


def _losses_and_gradients(task, model, features) -> dict[str, np.ndarray]:
    variables = {
        name: variable
        for name, variable in task.checkpoint_variables(model).items()
        if variable.trainable
    }
    with tf.GradientTape() as tape:
        losses = task.losses(features, model(features))
        loss = tf.reduce_sum(list(losses.values()))
    values = tape.gradient(loss, [v.value for v in variables.values()])
    values = map(tf.convert_to_tensor, values)
    return as_arrays(losses | dict(zip(variables, values, strict=True)))


def assert_padding_changes_nothing(task, features, length) -> None:
    """Compares losses and gradients at the lengths S and `length`."""
    keras.utils.set_random_seed(5)
    model = task.build_model()
    whole = _losses_and_gradients(task, model, features)
    short = _losses_and_gradients(task, model, cut(features, length))
    for name, values in whole.items():
        assert np.isfinite(values).all()
        np.testing.assert_allclose(
            short[name], values, rtol=1e-4, atol=1e-6, err_msg=name
        )
