"""`TrainableModel`: Keras's steps for all models of the package.

On CPUs `fit` computes as fast as the scripts, and features are checked once.
"""

import contextlib
import contextvars
import enum
import logging
import warnings

import keras

from bert_tf.errors import InputError
from bert_tf.modeling import kernels
from bert_tf.modeling.dense import adapted_layers


class Checked(enum.Enum):
    """Which checks of the features apply."""

    # Values. Tensors may be floats, which `keras.Input` has by default.
    VALUES = enum.auto()
    # Dtypes, in `fit`, `evaluate` and `predict`: on a GPU, PyTorch would wait
    # for the values in each step.
    DTYPES = enum.auto()
    # None, in a model inside another one, which has checked the features.
    NOTHING = enum.auto()


checked: contextvars.ContextVar[Checked] = contextvars.ContextVar(
    "checked", default=Checked.VALUES
)


def _is_real(record: logging.LogRecord) -> bool:
    """Returns False for a warning of TensorFlow about several Keras models.

    Keras makes a function per model from the same code. TensorFlow counts them
    as one function that is traced again and again.
    """
    message = record.getMessage()
    is_of_keras = "Trainer." in message and "_function.<locals>" in message
    return not (is_of_keras and "triggered tf.function retracing" in message)


logging.getLogger("tensorflow").addFilter(_is_real)


# The number of steps that `fit` is assumed to have if it is unknown.
_USUAL_STEPS = 1000


class TrainableModel(keras.Model):
    """What all models of the package share: `fit` at the speed of the scripts.

    All layers follow the attribute `trainable`.

    Attributes:
      num_steps, usual_length: Those of the next `fit`; see `kernels.compiling`.
    """

    num_steps = _USUAL_STEPS
    usual_length = kernels.USUAL_LENGTH

    def __setattr__(self, name, value):
        if name != "trainable":
            super().__setattr__(name, value)
            return
        # Setting an attribute to its present value does nothing in TensorFlow,
        # even if inner layers have other values.
        for layer in self._flatten_layers():
            keras.layers.Layer.trainable.fset(layer, value)

    def quantize(self, *args, **kwargs):
        require_merged(self)
        with warnings.catch_warnings():
            # Dropout and layer norms, which stay as they are.
            warnings.filterwarnings("ignore", "Layer .* `quantize` method")
            super().quantize(*args, **kwargs)
        renew_optimizer(self)

    def _compiling(self) -> contextlib.AbstractContextManager[None]:
        """Sets what XLA compiles in a step of training, as in the scripts.

        By default Keras compiles whole steps, except on CPUs with TensorFlow.
        """
        is_on_tensorflow = keras.config.backend() == "tensorflow"
        is_on_cpus = is_on_tensorflow and kernels.runs_op_by_op()
        if self.jit_compile or self.run_eagerly or not is_on_cpus:
            return contextlib.nullcontext()
        return kernels.compiling(
            kernels.Compiled.PASSES, self.num_steps, self.usual_length
        )

    def _checks_of_steps(self) -> contextlib.AbstractContextManager[None]:
        is_debugged = self.run_eagerly
        what = Checked.VALUES if is_debugged else Checked.DTYPES
        return kernels.setting(checked, what)

    def train_step(self, *args, **kwargs):
        with self._checks_of_steps(), self._compiling():
            return super().train_step(*args, **kwargs)

    def test_step(self, *args, **kwargs):
        with self._checks_of_steps():
            return super().test_step(*args, **kwargs)

    def predict_step(self, *args, **kwargs):
        with self._checks_of_steps():
            return super().predict_step(*args, **kwargs)


def require_merged(model: keras.Model) -> None:
    """Raises InputError if a model to quantize has LoRA adapters."""
    if adapted_layers(model):
        raise InputError(
            f"{model.name} has LoRA adapters. Call merge_lora before quantize."
        )


def renew_optimizer(model: keras.Model) -> None:
    """Adapts a compiled model to other trainable variables.

    An optimizer that has been used knows its variables, so it is replaced by a
    new one with the same options.
    """
    model.train_function = model.test_function = model.predict_function = None
    optimizer = model.optimizer if model.compiled else None
    if optimizer is not None and optimizer.built:
        model.optimizer = type(optimizer).from_config(optimizer.get_config())
        model.optimizer.build(model.trainable_variables)
