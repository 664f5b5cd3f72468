"""A model as small as can be, and ways to train it; no test by itself."""

import contextlib
from collections.abc import Iterator

import keras
import numpy as np
import tensorflow as tf

from bert_tf.config import BertConfig
from bert_tf.optimization import AdamWeightDecay
from bert_tf.training.estimator import Estimator
from bert_tf.training.settings import TrainingConfig
from bert_tf.training.step import TrainingStep

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
    """Token ids at random, padded to S; lengths [n], or [n, choices]."""
    mask = np.arange(S) < np.expand_dims(lengths, -1)
    return {
        "input_ids": random.integers(1, V, mask.shape).astype("int32") * mask,
        "input_mask": mask.astype("int32"),
        "segment_ids": np.zeros(mask.shape, "int32"),
    }


def as_arrays(tensors) -> dict[str, np.ndarray]:
    return {k: keras.ops.convert_to_numpy(v) for k, v in tensors.items()}


def cut(features, length) -> dict[str, np.ndarray]:
    """The same examples with less padding."""
    return {
        name: values.take(range(length), _place_axis(values))
        if _place_axis(values)
        else values
        for name, values in features.items()
    }


def _place_axis(values: np.ndarray) -> int:
    """The axis of the places of a sequence; 0 where there is none."""
    return next(
        (n for n, size in enumerate(values.shape) if n and size == S), 0
    )


def gradients(task, model, features) -> dict[str, np.ndarray]:
    """Those of the sum of the losses, by the names of a checkpoint."""
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
    return as_arrays(dict(zip(variables, values, strict=True)))


@contextlib.contextmanager
def eagerly() -> Iterator[None]:
    """Nothing is traced: faster where there is one step alone."""
    tf.config.run_functions_eagerly(True)
    try:
        yield
    finally:
        tf.config.run_functions_eagerly(False)


def one_step(task, features, micro_batches):
    """What a step recorded, and Adam's moments after it."""
    keras.utils.set_random_seed(5)
    model = task.build_model()
    optimizer = AdamWeightDecay(0.01)
    optimizer.build(model.trainable_variables)
    step = TrainingStep(
        task,
        model,
        optimizer,
        tf.distribute.get_strategy(),
        micro_batches=micro_batches,
    )
    count = len(features["input_ids"])
    data = tf.data.Dataset.from_tensor_slices(features).batch(count)
    records = as_arrays(step.run(iter(data), tf.constant(1)))
    slots = optimizer.slot_variables().items()
    return records, {name: slot.numpy() for name, slot in slots}


def assert_micro_batches_are_one_batch(task, features) -> None:
    """Cut in three, a batch has the same loss and gradients."""
    with eagerly():
        whole, moments = one_step(task, features, 1)
        parts, others = one_step(task, features, 3)
    np.testing.assert_allclose(parts["loss"], whole["loss"], rtol=1e-5)
    for name, moment in moments.items():
        np.testing.assert_allclose(
            others[name], moment, rtol=1e-3, atol=1e-7, err_msg=name
        )


def assert_padding_changes_nothing(task, features, length) -> None:
    """Losses and gradients are the same at S places and at `length`."""
    keras.utils.set_random_seed(5)
    model = task.build_model()
    whole = gradients(task, model, features)
    short = gradients(task, model, cut(features, length))
    for name, gradient in whole.items():
        assert np.isfinite(gradient).all()
        np.testing.assert_allclose(
            short[name], gradient, rtol=1e-4, atol=1e-6, err_msg=name
        )
    losses = [
        as_arrays(task.losses(f, model(f)))
        for f in (features, cut(features, length))
    ]
    for name, loss in losses[0].items():
        np.testing.assert_allclose(losses[1][name], loss, rtol=1e-5)


def learn(
    task, features, folder, num_train_steps=80
) -> tuple[dict, dict, dict]:
    """Learns examples by heart, in batches of two lengths.

    Args:
      task: What to learn.
      features: Eight examples; the first four at most S - 2 places long.
      folder: Where checkpoints go.
      num_train_steps: How long.

    Returns:
      The scores before and after, and the last predictions.
    """
    config = TrainingConfig(
        train_batch_size=4,
        eval_batch_size=4,
        learning_rate=0.01,
        num_train_steps=num_train_steps,
        num_warmup_steps=5,
        weight_decay_rate=0.0,
        random_seed=1,
        jit_compile=False,
    )
    estimator = Estimator(
        task, tf.distribute.get_strategy(), config, str(folder)
    )
    data = _in_two_lengths(features)
    before = estimator.evaluate(lambda **_: data)
    estimator.train(lambda **_: data.repeat())
    after = estimator.evaluate(lambda **_: data)
    return before, after, estimator.predict(lambda **_: data)


def _in_two_lengths(features) -> tf.data.Dataset:
    numbers = np.arange(8, dtype="int32")
    features = {
        **features,
        "is_real_example": np.ones_like(numbers),
        "example_index": numbers,
    }
    first = {k: v[:4] for k, v in features.items()}
    last = {k: v[4:] for k, v in features.items()}
    signature = {
        name: tf.TensorSpec(
            [
                size if n != _place_axis(values) or not n else None
                for n, size in enumerate((4, *values.shape[1:]))
            ],
            values.dtype,
        )
        for name, values in features.items()
    }
    return tf.data.Dataset.from_generator(
        lambda: iter([cut(first, S - 2), last]), output_signature=signature
    )
