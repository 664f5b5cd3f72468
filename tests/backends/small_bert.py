"""Small models with the same numbers on every machine and Keras backend.

Weights, inputs and labels are functions of their names:
`random.Random(name).random()` gives the same values everywhere.
"""

import contextlib
import functools
import math
import random
from collections.abc import Callable
from unittest import mock

import keras
import numpy as np
from keras import ops

from bert_tf.config import BertConfig
from bert_tf.modeling import heads
from bert_tf.modeling.encoder import BertModel
from bert_tf.modeling.optimization import AdamWeightDecay, WarmupLinearDecay
from bert_tf.modeling.variables import checkpoint_variables

# All sizes differ, so that swapped axes fail.
B, S, P, V, H, N, C, LABELS = 3, 7, 8, 29, 10, 5, 4, 6
CONFIG = BertConfig(
    vocab_size=V,
    hidden_size=H,
    num_hidden_layers=2,
    num_attention_heads=N,
    intermediate_size=17,
    max_position_embeddings=11,
    type_vocab_size=2,
)
WITHOUT_DROPOUT = BertConfig.from_dict(
    CONFIG.to_dict()
    | {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
)
ARGUMENTS = {
    BertModel: {"output_hidden_states": True, "output_attentions": True},
    heads.BertPretrainer: {},
    heads.BertClassifier: {"num_labels": LABELS},
    heads.BertTokenClassifier: {"num_labels": LABELS},
    heads.BertMultipleChoice: {},
    heads.BertSpanLabeler: {},
}
MODELS = list(ARGUMENTS)

# Options of `compile` for a few steps: tracing them on TensorFlow takes longer
# than running them, but JAX otherwise compiles a program for each operation.
BRIEFLY = {"run_eagerly": keras.config.backend() != "jax"}

STEPS = 5  # The steps of the training whose weights are golden.
STEPS_BEFORE_SAVING = 3


def uniform(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Values in [0, 1), a function of the name."""
    source = random.Random(name)
    values = [source.random() for _ in range(math.prod(shape))]
    return np.array(values).reshape(shape)


def integers(name: str, shape: tuple[int, ...], end: int) -> np.ndarray:
    """Integers in [0, end), a function of the name."""
    return (uniform(name, shape) * end).astype("int32")


def weight(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """A weight by its TF1 name: within 0.5, around 1 for a gamma."""
    center = 1.0 if name.endswith("gamma") else 0.0
    return (uniform(name, shape) - 0.5 + center).astype("float32")


@contextlib.contextmanager
def initial_zeros():
    """Variables start as zeros: JAX compiles a program for each random shape.

    For models whose weights are all assigned afterwards.
    """

    def zeros(self, shape, dtype=None):
        dtype = keras.backend.standardize_dtype(dtype)
        return ops.convert_to_tensor(np.zeros(shape, "float32"), dtype)

    with contextlib.ExitStack() as stack:
        for initializer in (
            keras.initializers.TruncatedNormal,
            keras.initializers.VarianceScaling,
            keras.initializers.Orthogonal,
        ):
            stack.enter_context(
                mock.patch.object(initializer, "__call__", zeros)
            )
        yield


def fill(model, part: str = "") -> keras.Model:
    """Builds a model and sets each weight to a function of its name.

    Or only the weights with `part` in their names.
    """
    with initial_zeros():
        model.build()
    for name, variable in checkpoint_variables(model).items():
        if part in name:
            variable.assign(weight(name, tuple(variable.shape)))
    return model


def make(model_class, config=CONFIG, **arguments) -> keras.Model:
    """A model whose weights are functions of their names."""
    return fill(model_class(config, **ARGUMENTS[model_class] | arguments))


def features(model_class=BertModel) -> dict[str, np.ndarray]:
    """A full row, a padded one, and one of a single token."""
    choices = (C,) if model_class is heads.BertMultipleChoice else ()
    lengths = np.array([S, 4, 1]).reshape(B, *[1] * len(choices), 1)
    mask = np.broadcast_to(np.arange(S) < lengths, (B, *choices, S))
    inputs = {
        "input_ids": integers("input_ids", mask.shape, V),
        "input_mask": mask.astype("int32"),
        "segment_ids": integers("segment_ids", mask.shape, 2),
    }
    if model_class is heads.BertPretrainer:
        inputs["masked_lm_positions"] = integers("positions", (B, P), S)
    return inputs


def call(model: keras.Model, inputs):
    """`model(inputs)`; on JAX as one program, which compiles faster."""
    if keras.config.backend() != "jax" or not model.built:
        return model(inputs)
    return _compiled(model)(inputs)


@functools.lru_cache(maxsize=8)
def _compiled(model: keras.Model) -> Callable:
    import jax

    names = []

    @jax.jit
    def compute(trainable, others, inputs):
        outputs, _ = model.stateless_call(trainable, others, inputs)
        names[:] = outputs
        return outputs

    def run(inputs):
        variables = (model.trainable_variables, model.non_trainable_variables)
        values = [[v.value for v in group] for group in variables]
        outputs = compute(*values, inputs)
        # JAX sorts the keys of a dict.
        return {name: outputs[name] for name in names}

    return run


def symbols(model_class=BertModel) -> dict[str, keras.KerasTensor]:
    """The same inputs without batch size and length."""
    return {
        name: keras.Input((None,) * (value.ndim - 1), dtype="int32", name=name)
        for name, value in features(model_class).items()
    }


def numbers(tree):
    """Tensors of any backend and precision as float32 NumPy arrays."""
    return keras.tree.map_structure(
        lambda x: ops.convert_to_numpy(ops.cast(x, "float32")), tree
    )


def named(tree) -> dict[str, np.ndarray]:
    """The outputs of a model as a flat dict: `attentions/0`, `logits`."""
    return {
        "/".join(map(str, path)): value
        for path, value in keras.tree.flatten_with_path(numbers(tree))
    }


def outputs(model: keras.Model, inputs=None) -> dict[str, np.ndarray]:
    """The flat outputs of a model for its `features`, or for other inputs."""
    return named(call(model, inputs or features(type(model))))


def assert_close(found: dict, expected: dict, tolerance: float = 1e-5) -> None:
    """Compares arrays by name, with a relative and absolute tolerance."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(
            found[name], value, tolerance, tolerance, err_msg=name
        )


def arrays(model: keras.Model) -> dict[str, np.ndarray]:
    """All weights, by their TF1 names."""
    return numbers(checkpoint_variables(model))


def named_weights(model) -> dict[str, np.ndarray]:
    """The weights by their TF1 names, without the biases of the keys.

    They add the same number to all scores of a softmax, so that their gradient
    is rounding errors, which Adam turns into steps.
    """
    weights = arrays(model).items()
    return {n: x for n, x in weights if not n.endswith("self/key/bias")}


def compiled(model: keras.Model, optimizer=None) -> keras.Model:
    """A classifier that is compiled for a few steps, by default of Adam."""
    model.compile(
        optimizer or AdamWeightDecay(0.01),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        **BRIEFLY,
    )
    return model


def trainable(model) -> set[str]:
    """The TF1 names of the trainable variables."""
    names = {v.path: name for name, v in checkpoint_variables(model).items()}
    return {names[v.path] for v in model.trainable_variables}


def classifier_to_train(optimizer_class) -> keras.Model:
    """A compiled classifier that draws no random numbers."""
    model = make(heads.BertClassifier, WITHOUT_DROPOUT, dropout=0.0)
    schedule = WarmupLinearDecay(0.01, 7, 2)
    return compiled(model, optimizer_class(schedule, global_clipnorm=1.0))


def train(model: keras.Model, first: int, last: int) -> None:
    """Runs the steps from `first` to before `last`, each on other labels."""
    steps = range(first, last)
    labels = [integers(f"labels {step}", (B,), LABELS) for step in steps]
    inputs = {k: np.tile(v, (len(steps), 1)) for k, v in features().items()}
    model.fit(
        inputs, np.concatenate(labels), batch_size=B, shuffle=False, verbose=0
    )


def moved_by_training(model: keras.Model, first: int, last: int) -> set[str]:
    """Runs steps; returns the TF1 names of the weights that they change."""
    before = arrays(model)
    train(model, first, last)
    after = arrays(model)
    return {n for n in after if not np.array_equal(before[n], after[n])}
