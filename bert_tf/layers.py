"""What every layer of BERT is made of: a config, a seed, the same parts."""

import functools
import math
from collections.abc import Iterator, Mapping

import keras
import numpy as np
from keras import ops

from bert_tf import fusion
from bert_tf.config import BertConfig
from bert_tf.errors import InputError


def _gelu(x, approximate: bool):
    """GELU by tanh or by erf, in float32 whatever the compute dtype.

    Keras's own takes TensorFlow's erfc, on CPUs half as fast as erf, and in
    bfloat16, where it is several per cent off, a quarter as fast as float32.
    """
    if keras.config.backend() != "tensorflow":
        return keras.activations.gelu(x, approximate=approximate)
    if passes := fusion.passes_for(x):
        return passes.gelu(x, approximate)
    wide = ops.cast(x, keras.backend.result_type(x.dtype, "float32"))
    if approximate:
        wide = keras.activations.gelu(wide, approximate=True)
    else:
        wide = 0.5 * wide * (1.0 + ops.erf(wide * math.sqrt(0.5)))
    return ops.cast(wide, x.dtype)


ACTIVATIONS = {
    "gelu_tanh": functools.partial(_gelu, approximate=True),
    "gelu_erf": functools.partial(_gelu, approximate=False),
    "relu": keras.activations.relu,
    "tanh": keras.activations.tanh,
    "linear": keras.activations.linear,
}


class GivenSeed(keras.random.SeedGenerator):
    """A seed that came from outside, where Keras asks for a generator.

    Keras draws dropout masks from a generator that lives in a variable. A
    training step that can be repeated, recomputed or resumed needs masks that
    are a function of its arguments alone.

    Args:
      seed: Integer tensor [2].
    """

    # What Keras's PyTorch dropout looks at: None would mean "not seeded".
    _initial_seed = 0

    def __init__(self, seed):
        # Not super().__init__: it would create the state variable.
        self.seed = seed

    def next(self, ordered=True):
        if keras.config.backend() == "jax":
            return ops.cast(self.seed, "uint32")  # What its keys are.
        return self.seed


def draw_seed(generator: keras.random.SeedGenerator):
    """Draws a seed, integers [2], that a layer can hand on.

    Not the generator's own state: that is a counter, and `fold_in` would lead
    from one call's seed to the next call's.
    """
    return keras.random.randint((2,), 0, 2**31 - 1, seed=generator)


def fold_in(seed, site: int):
    """Derives the seed of one place in the model; None stays None."""
    if seed is None:
        return None
    return seed + ops.convert_to_tensor([0, site], dtype=seed.dtype)


def recomputed(function):
    """Lets the backward pass compute `function` again: `keras.remat`.

    Args:
      function: A function of tensors that draws no random numbers but from
        seeds that it was given.

    Returns:
      The same function. Its gradients keep its arguments and nothing else.
    """
    result = keras.remat(function)
    if keras.config.backend() == "torch":
        # PyTorch stops computing by an exception once it has what it wants;
        # its traceback through Keras's layers keeps their tensors alive.
        return functools.partial(result, early_stop=False)
    return result


def integers(inputs: Mapping, name: str):
    """A feature as an int32 tensor; None where it was left out."""
    value = inputs.get(name)
    return None if value is None else ops.convert_to_tensor(value, "int32")


def positive_integer(name: str, value) -> int:
    """A size as Keras can save it.

    Raises:
      InputError: It is none.
    """
    is_count = isinstance(value, (int, np.integer))
    if not is_count or isinstance(value, bool) or value < 1:
        raise InputError(
            f"expected a positive integer as {name}. Received: {value!r}"
        )
    return int(value)


@keras.saving.register_keras_serializable("bert_tf")
class Dropout(keras.layers.Dropout):
    """Dropout that takes its seed as an argument, if it is given one."""

    def call(self, inputs, training=False, seed=None):
        """Returns `inputs` with a share `rate` of its values set to zero.

        Args:
          inputs: Float tensor of any shape.
          training: Without it, `inputs` come back as they are.
          seed: Integer tensor [2], or None for the layer's own generator.
        """
        if not training or self.rate == 0.0 or seed is None:
            return super().call(inputs, training=training)
        return keras.random.dropout(inputs, self.rate, seed=GivenSeed(seed))


@keras.saving.register_keras_serializable("bert_tf")
class Dense(keras.layers.Dense):
    """Dense layer that, in half precision, multiplies matrices.

    TensorFlow adds a bias within the product if it comes right behind one of
    matrices, and in a pass of its own if they are made three-dimensional in
    between, which in bfloat16 is a tenth of the time on a CPU. In float32
    nothing is gained; on a TPU the matrices take 7 % more memory.
    """

    def call(self, inputs, training=None):
        """Maps floats [..., F] to [..., units]."""
        is_half = self.compute_dtype in ("bfloat16", "float16")
        if not is_half or fusion.is_all_compiled():
            return super().call(inputs, training=training)
        *outer, width = ops.shape(inputs)
        rows = ops.reshape(inputs, (-1, width))
        rows = super().call(rows, training=training)
        return ops.reshape(rows, (*outer, self.units))  # [..., units]

    def enable_lora(self, *args, **kwargs):
        """As in Keras; the adapters of a frozen layer are trained too."""
        super().enable_lora(*args, **kwargs)
        self.train_adapters()

    def train_adapters(self) -> None:
        """Trains the LoRA adapters, if there are any, and not the kernel."""
        if self.lora_enabled:
            self.lora_kernel_a.trainable = True
            self.lora_kernel_b.trainable = True
            self._kernel.trainable = False

    def quantize(self, mode=None, type_check=True, **options):
        """Makes the kernel int8; Keras does so for its own class only.

        Raises:
          InputError: The mode is another one.
        """
        if mode != "int8":
            raise InputError(
                f"The mode to quantize a BERT to must be 'int8'; got {mode!r}."
            )
        super().quantize(mode, type_check=False, **options)

    def build_quantized(self, config: dict | None) -> None:
        """Lets `build` make an int8 kernel.

        Args:
          config: A Keras `QuantizationConfig`, serialized; None for default.
        """
        self.quantization_config = keras.saving.deserialize_keras_object(config)
        self.dtype_policy = f"int8_from_{self.dtype_policy.name}"


def _dense_layers(
    layer: keras.layers.Layer, path: str = ""
) -> Iterator[tuple[str, Dense]]:
    """Yields the dense layers in a layer and the names that lead to them."""
    for inner in layer._flatten_layers(include_self=False, recursive=False):
        inner_path = f"{path}{inner.name}"
        if isinstance(inner, Dense):
            yield inner_path, inner
        yield from _dense_layers(inner, f"{inner_path}/")


class FromConfig:
    """What layers and models that are made from a `BertConfig` share.

    Their parts have their dtype policy, and a config of their own class.
    """

    def __init__(self, config: BertConfig | dict, **kwargs):
        super().__init__(**kwargs)
        if isinstance(config, dict):
            config = BertConfig.from_dict(config)
        self.config = config

    def get_config(self):
        return {**super().get_config(), "config": self.config.to_dict()}

    def make_part(
        self, layer: type["BertLayer"], name: str, **arguments
    ) -> "BertLayer":
        """Makes an inner layer of the same config and policy."""
        return layer(
            self.config, name=name, dtype=self.dtype_policy, **arguments
        )

    def make_dense(self, units: int, name: str = "dense") -> keras.layers.Dense:
        """Makes a dense layer with the original's initialization."""
        return Dense(
            units,
            kernel_initializer=self.make_initializer(),
            name=name,
            dtype=self.dtype_policy,
        )

    def make_initializer(self) -> keras.Initializer:
        """Makes the original's initializer, a new one for each weight.

        A Keras initializer draws the same values each time that it is used,
        so query, key and value must not share one.
        """
        return keras.initializers.TruncatedNormal(
            stddev=self.config.initializer_range
        )

    def make_layer_norm(self) -> keras.layers.LayerNormalization:
        """Makes a layer norm with the original's epsilon."""
        return keras.layers.LayerNormalization(
            epsilon=1e-12, name="LayerNorm", dtype=self.dtype_policy
        )

    def make_dropout(self, rate: float) -> Dropout:
        """Makes a dropout layer."""
        return Dropout(rate, dtype=self.dtype_policy)


class BertLayer(FromConfig, keras.layers.Layer):
    """A layer that is made from a `BertConfig`."""


# What others call our features. A mask by another name would have no effect,
# and nobody would notice.
_NAMES_OF_OTHERS = {
    "attention_mask": "input_mask",
    "token_type_ids": "segment_ids",
}


# Features of each token, of the shape of `input_ids`.
TOKEN_FEATURES = ("input_mask", "segment_ids", "position_ids", "example_ids")

# Features that may be keywords; those of others get an error of their own.
_KEYWORDS = frozenset(
    {
        *("input_ids", *TOKEN_FEATURES),
        *("masked_lm_positions", "cls_positions"),
        *_NAMES_OF_OTHERS,
    }
)

# What an exported model takes.
EXPORTED_FEATURES = ("input_ids", "input_mask", "segment_ids")
# The converters of these write models that cannot be loaded for bfloat16.
_FLOAT32_FORMATS = ("onnx", "litert")


class TakesFeatures:
    """A model that takes a dict of features; goes before its Keras class.

    Features may also be passed as keywords: `model(input_ids=ids)`.

    What is wrong with them is said here and not in `call`: Keras writes many
    lines around the errors from there.
    """

    # Axes of `input_ids`: batch and sequence.
    input_rank = 2

    def __call__(self, inputs=None, *args, **kwargs):
        if inputs is None:
            names = [name for name in kwargs if name in _KEYWORDS]
            inputs = {name: kwargs.pop(name) for name in names}
        return super().__call__(self.checked(inputs), *args, **kwargs)

    def feature_shapes(self, input_shape) -> dict[str, tuple]:
        """Returns shapes by feature, from what Keras passes to `build`.

        Args:
          input_shape: Dict of shapes, the shape of `input_ids` alone, or None
            for unknown sizes.
        """
        if input_shape is None:
            input_shape = (None,) * self.input_rank
        if not isinstance(input_shape, Mapping):
            input_shape = {"input_ids": input_shape}
        return {name: tuple(shape) for name, shape in input_shape.items()}

    def get_config(self):
        quantized = {
            path: keras.saving.serialize_keras_object(
                getattr(layer, "quantization_config", None)
            )
            for path, layer in _dense_layers(self)
            if layer.quantization_mode
        }
        config = super().get_config()
        return {**config, "quantized": quantized} if quantized else config

    @classmethod
    def from_config(cls, config, custom_objects=None):
        config = dict(config)
        quantized = config.pop("quantized", {})
        model = super().from_config(config, custom_objects=custom_objects)
        layers = dict(_dense_layers(model))
        for path, quantization_config in quantized.items():
            layers[path].build_quantized(quantization_config)
        return model

    def checked(self, inputs) -> dict:
        """The features that are there, as tensors.

        Raises:
          InputError: They are not what the model takes.
        """
        is_dict = isinstance(inputs, Mapping)
        if not is_dict or inputs.get("input_ids") is None:
            raise InputError(
                f"expected a dict with 'input_ids' as the input of {self.name}."
                f" Received: {sorted(inputs) if is_dict else type(inputs)}"
            )
        for theirs, ours in _NAMES_OF_OTHERS.items():
            if theirs in inputs:
                raise InputError(
                    f"expected {ours!r}, as {theirs!r} is called here. "
                    f"Received: {sorted(inputs)}"
                )
        features = {
            name: _as_tensor(value)
            for name, value in inputs.items()
            if value is not None
        }
        self._check_shapes(features)
        return features

    def export(
        self,
        filepath,
        format="tf_saved_model",
        verbose=None,
        input_signature=None,
        **kwargs,
    ):
        """Exports the model for inference, as `keras.Model.export` does.

        Example:

            model.export("exported")  # Takes EXPORTED_FEATURES.
            spec = keras.InputSpec(
                shape=(None, 128), dtype="int32", name="input_ids"
            )
            model.export("fixed", input_signature=[{"input_ids": spec}])

        Args:
          filepath: The file or folder to write.
          format: A format of Keras's: "tf_saved_model", "onnx", "litert" ...
          verbose: Whether Keras prints what it wrote.
          input_signature: A list of one dict of `keras.InputSpec`. By default
            the features `EXPORTED_FEATURES`, int32, of any batch and length.
          **kwargs: Keras's options of the format.

        Raises:
          InputError: The format needs float32 and the model computes in less,
            or the model returns lists of tensors.
        """
        if format in _FLOAT32_FORMATS and self.compute_dtype != "float32":
            raise InputError(
                f"format={format!r} needs a model with dtype='float32'; "
                f"{self.name} has {self.dtype_policy.name!r}. Load its weights "
                "into a model made with dtype='float32' and export that one."
            )
        options = ("output_attentions", "output_hidden_states")
        config = self.get_config()
        if lists := [name for name in options if config.get(name)]:
            raise InputError(
                f"An exported model returns tensors; {self.name} returns lists "
                f"of them ({', '.join(lists)}). Load its weights into a model "
                "made without that and export that one."
            )
        self.build()
        # Keras would guess the dtype of the ids: the compute dtype, a float.
        features = {
            name: keras.InputSpec(
                shape=(None,) * self.input_rank, dtype="int32", name=name
            )
            for name in EXPORTED_FEATURES
        }
        super().export(
            filepath,
            format=format,
            verbose=verbose,
            input_signature=input_signature or [features],
            **kwargs,
        )

    def _check_shapes(self, features) -> None:
        """Compares what is known of the shapes."""
        shape = _known_shape(features["input_ids"])
        if shape is None:
            return
        if len(shape) != self.input_rank:
            raise InputError(
                f"expected input_ids with {self.input_rank} axes, the last two "
                f"[batch or choices, length], in {self.name}. Received: the "
                f"shape {shape}"
            )
        shapes = dict.fromkeys(TOKEN_FEATURES, shape)
        shapes["cls_positions"] = (*shape[:-1], None)
        for name in shapes.keys() & features.keys():
            other = _known_shape(features[name])
            if other is not None and not _can_be_equal(shapes[name], other):
                raise InputError(
                    f"expected {name} of the shape {shapes[name]}, beside "
                    f"input_ids of {shape}. Received: {other}"
                )


def _as_tensor(value):
    """Makes a tensor of a Python list; Keras takes its numbers one by one."""
    return ops.convert_to_tensor(value) if isinstance(value, list) else value


def _known_shape(value) -> tuple | None:
    """The shape, None where TensorFlow does not know the number of axes."""
    shape = value.shape
    return None if getattr(shape, "rank", 0) is None else tuple(shape)


def _can_be_equal(shape: tuple, other: tuple) -> bool:
    """False if two shapes differ where both are numbers."""
    return len(shape) == len(other) and all(
        a == b or not (isinstance(a, int) and isinstance(b, int))
        for a, b in zip(shape, other, strict=True)
    )
