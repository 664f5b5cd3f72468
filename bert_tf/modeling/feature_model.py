"""The base classes of models.

`TrainableModel` is the base of all models: on CPUs, its `fit` computes as fast
as the scripts. `FeatureModel` is the base of models that take a dict of
features: they have a configuration, and can be saved, exported and made from
checkpoints.
"""

import functools
import inspect
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import keras
import numpy as np
from keras import ops
from keras.dtype_policies import DTypePolicyMap

from bert_tf.base import files
from bert_tf.config import (
    BertConfig,
    as_config,
    positive_integer,
    require_positive,
)
from bert_tf.data.records import INPUTS
from bert_tf.errors import InputError, require_choice, wrong_value
from bert_tf.modeling import kernels
from bert_tf.modeling.dense import adapted_layers, dense_layers
from bert_tf.modeling.transformer import LORA_LAYERS, LORA_TARGETS

# Features of each token, with the shape of `input_ids`.
TOKEN_FEATURES = ("input_mask", "segment_ids", "position_ids", "example_ids")

# The names of our features in other libraries. Without an error, a mask under
# another name would be ignored.
_FOREIGN_NAMES = {
    "attention_mask": "input_mask",
    "token_type_ids": "segment_ids",
}

# Features that can be keyword arguments; foreign names get their own error.
_KEYWORDS = frozenset(
    ("input_ids", *TOKEN_FEATURES, "masked_lm_positions", "cls_positions")
).union(_FOREIGN_NAMES)

# Number of axes of `input_ids` -> their meaning.
_AXES = {2: ("batch", "length"), 3: ("batch", "choices", "length")}

# The number of steps that `fit` is assumed to have if it is unknown.
_USUAL_STEPS = 1000

# Converters to these formats write bfloat16 models that cannot be loaded.
_FLOAT32_FORMATS = ("onnx", "litert")


class TrainableModel(keras.Model):
    """What all models of the package share: `fit` at the speed of the scripts.

    All layers follow the attribute `trainable`.

    Attributes:
      num_steps, usual_length: The steps of the next `fit`, and the usual length
        of its batches; see `kernels.compiling`.
    """

    num_steps = _USUAL_STEPS
    usual_length = kernels.USUAL_LENGTH

    def __setattr__(self, name, value):
        if name == "trainable":
            # Setting an attribute to its present value does nothing in
            # TensorFlow, even if inner layers have other values.
            super().__setattr__(name, not value)
        super().__setattr__(name, value)

    def quantize(self, *args, **kwargs):
        if adapted_layers(self):
            raise InputError(
                f"{self.name} has LoRA adapters. Call merge_lora before "
                "quantize."
            )
        with warnings.catch_warnings():
            # Keras warns of dropout and layer norms, which do not change.
            warnings.filterwarnings("ignore", "Layer .* `quantize` method")
            super().quantize(*args, **kwargs)
        renew_optimizer(self)

    def train_step(self, *args, **kwargs):
        """Runs a step of Keras, compiled as in the scripts.

        By default Keras compiles, except on PyTorch, and on TensorFlow with
        CPUs or a strategy.
        """
        is_on_tensorflow = keras.config.backend() == "tensorflow"
        is_op_by_op = is_on_tensorflow and kernels.runs_op_by_op()
        compiled = kernels.Compiled.PASSES
        if self.jit_compile or self.run_eagerly or not is_op_by_op:
            compiled = kernels.Compiled.NOTHING
        with kernels.compiling(compiled, self.num_steps, self.usual_length):
            return super().train_step(*args, **kwargs)


def renew_optimizer(model: keras.Model) -> None:
    """Adapts a compiled model to a change of its trainable variables.

    An optimizer with variables cannot take others, so a new one with the same
    options replaces it.
    """
    model.train_function = model.test_function = model.predict_function = None
    optimizer = model.optimizer if model.compiled else None
    if optimizer is not None and optimizer.built:
        model.optimizer = type(optimizer).from_config(optimizer.get_config())
        model.optimizer.build(model.trainable_variables)


def _with_datasets(method: Callable) -> Callable:
    """Returns a method of `keras.Model` that batches arrays as datasets.

    See `pipeline.with_datasets`. On several devices Keras shards arrays.
    """
    signature = inspect.signature(method)

    @functools.wraps(method)
    def call(self, *args, **kwargs):
        arguments = dict(signature.bind(self, *args, **kwargs).arguments)
        arguments |= arguments.pop("kwargs", {})
        if isinstance(arguments.get("x"), Mapping):
            self.check_features(arguments["x"])
        if (
            keras.config.backend() == "tensorflow"
            and self.distribute_strategy.num_replicas_in_sync == 1
        ):
            from bert_tf.data import pipeline

            is_shuffled = method is keras.Model.fit
            arguments = pipeline.with_datasets(arguments, is_shuffled)
        return method(**arguments)

    return call


class FeatureModel(TrainableModel):
    """A model with a `BertConfig` that takes a dict of features.

    Features may also be passed as keywords: `model(input_ids=ids)`. They are
    checked in `__call__`, since Keras adds many lines to errors from `call`.

    Attributes:
      head_name: The head in checkpoints, a key of `HEADS` of
        `huggingface_names`. None for models that no other library has.
      checkpoint: What `from_pretrained` found beside the weights (vocabulary,
        casing, labels): a `checkpoint.Pretrained`. None for other models.
      random_variables: The TF1 names of the weights that `from_pretrained` did
        not find, and a checksum of their values, which training changes.
      unused_variables: Weights without effect on the outputs, as a regular
        expression for the beginning of their TF1 names.
    """

    # Number of axes of `input_ids`: batch and sequence.
    input_rank = 2
    head_name: str | None = None
    checkpoint: Any = None
    random_variables: tuple[tuple[str, ...], str] | None = None
    is_warned_of_random = False
    unused_variables = r"(?!)"  # Matches nothing.

    def __init__(self, config: BertConfig | dict, **kwargs):
        super().__init__(**kwargs)
        self.config = as_config(config)
        # bfloat16 cannot represent token ids exactly.
        self.autocast = False

    @classmethod
    def from_pretrained(
        cls, path: str | os.PathLike[str], **options: Any
    ) -> Self:
        """Makes a model with the configuration and weights of a checkpoint.

        Example:

            model = BertClassifier.from_pretrained(
                "hf://google-bert/bert-base-uncased", labels=["bad", "good"]
            )

        Args:
          path: See `load_checkpoint`.
          **options: Arguments of the constructor, such as `dtype`. Classifiers
            and taggers also take `labels`, the names of their classes; without
            `labels` and `num_labels` they use the checkpoint's.

        Returns:
          A built model. Parts that the checkpoint lacks, such as a new head,
          are random; the log lists them.

        Raises:
          InputError: If the checkpoint cannot be read, has no configuration or
            does not fit the options.
        """
        # Takes a tenth of a second to import.
        from bert_tf.checkpoints import pretrained

        return pretrained.make_model(cls, path, **options)

    def save_pretrained(
        self,
        folder: str | os.PathLike[str],
        format: str = "huggingface",
        *,
        tokenizer: Any = None,
        labels: Sequence[str] | None = None,
    ) -> None:
        """Writes the model for other libraries, with a model card.

        A model from `from_pretrained` is written with its vocabulary and
        labels.

        Args:
          folder: A new or empty folder.
          format: "huggingface" (what `transformers` loads) or "tf1" (Google's
            `bert_model.ckpt`).
          tokenizer: A `BertTokenizer` or `FullTokenizer`, whose vocabulary is
            written too.
          labels: The names of the classes, in the order of the logits.

        Raises:
          InputError: If the folder is not empty or cannot be written, or the
            format cannot hold the model.
        """
        from bert_tf.checkpoints import conversion

        facts = {} if labels is None else {"labels": tuple(labels)}
        conversion.save(self, folder, format, tokenizer, **facts)

    def __call__(self, inputs=None, *args, **kwargs):
        if inputs is None:
            names = [name for name in kwargs if name in _KEYWORDS]
            inputs = {name: kwargs.pop(name) for name in names}
        return super().__call__(self.check_features(inputs), *args, **kwargs)

    fit = _with_datasets(keras.Model.fit)
    evaluate = _with_datasets(keras.Model.evaluate)
    predict = _with_datasets(keras.Model.predict)

    def check_features(self, inputs) -> dict:
        """Returns the features that are not None, as tensors or arrays.

        Raises:
          InputError: If `input_ids` is missing; if a feature has the name of
            another library, the wrong dtype or shape; or if a value is out of
            range. Values inside a graph are not checked.
        """
        is_dict = isinstance(inputs, Mapping)
        if not is_dict or inputs.get("input_ids") is None:
            raise wrong_value(
                f"The input of {self.name}",
                "a dict with 'input_ids'",
                sorted(inputs) if is_dict else type(inputs),
            )
        for foreign, ours in _FOREIGN_NAMES.items():
            if foreign in inputs:
                raise InputError(
                    f"{self.name} has no feature {foreign!r}. Rename it to "
                    f"{ours!r}."
                )
        features = {
            name: x if hasattr(x, "shape") else _converted(name, x)
            for name, x in inputs.items()
            if x is not None
        }
        self._check_shapes(features)
        self._check_values(features)
        return features

    def _check_shapes(self, features: dict) -> None:
        """Compares the known sizes of the features."""
        shape = _known_shape(features["input_ids"])
        if shape is None:
            return
        if len(shape) != self.input_rank or shape[-1] == 0:
            raise wrong_value(
                f"The shape of input_ids of {self.name}",
                f"[{', '.join(_AXES[self.input_rank])}] with a length above 0",
                shape,
            )
        shapes = dict.fromkeys(TOKEN_FEATURES, shape)
        shapes["cls_positions"] = (*shape[:-1], None)
        for name in shapes.keys() & features.keys():
            other = _known_shape(features[name])
            if other is not None and not _can_be_equal(shapes[name], other):
                raise wrong_value(
                    f"The shape of {name}",
                    f"{shapes[name]}, as input_ids has {shape}",
                    other,
                )

    def _check_values(self, features: dict) -> None:
        """Checks that known values of features are within the model's sizes.

        Values may be floats, the default of `keras.Input`.
        """
        sizes = {
            "input_ids": "vocab_size",
            "segment_ids": "type_vocab_size",
            "position_ids": "max_position_embeddings",
        }
        for name, size in sizes.items():
            most = getattr(self.config, size) - 1
            _require_range(features, name, most, f"below {size}")
        length = features["input_ids"].shape[-1]
        if isinstance(length, int):
            for name in ("cls_positions", "masked_lm_positions"):
                place = "a position of input_ids"
                _require_range(features, name, length - 1, place)
        _require_range(features, "input_mask", 1, "1 for tokens")

    def feature_shapes(self, input_shape) -> dict[str, tuple]:
        """Returns shapes by feature.

        `input_shape` is a dict of shapes, the shape of `input_ids`, or None for
        unknown sizes.
        """
        if input_shape is None:
            input_shape = (None,) * self.input_rank
        if not isinstance(input_shape, Mapping):
            input_shape = {"input_ids": input_shape}
        return {name: tuple(shape) for name, shape in input_shape.items()}

    def compute_output_spec(self, *args, **kwargs):
        # Keras assumes the compute dtype, but logits are float32.
        outputs = super().compute_output_spec(*args, **kwargs)
        return {
            name: keras.KerasTensor(spec.shape, "float32")
            if name.endswith("logits")
            else spec
            for name, spec in outputs.items()
        }

    def enable_lora(
        self,
        rank: int,
        target_layer_names: Sequence[str] | str = LORA_TARGETS,
        lora_alpha: float | None = None,
    ) -> None:
        """Adds LoRA adapters to the encoder and freezes the rest of it.

        Then only the adapters and the head are trained; the embeddings, the
        kernels, biases and layer norms of the blocks, and the pooler are not.
        Source: Hu et al. 2021, "LoRA: Low-Rank Adaptation of Large Language
        Models". A compiled model gets a new optimizer with the same options.

        Args:
          rank: The rank of the adapters.
          target_layer_names: The projections of each block that get an
            adapter: names of `transformer.LORA_LAYERS`, or "all". By default
            "query" and "value", as in the paper.
          lora_alpha: The product of the adapters is multiplied by lora_alpha /
            rank; by default by 1.

        Raises:
          InputError: If an argument is invalid, or the model has adapters
            already or is quantized.
        """
        # The rank of a kernel is at most the hidden size.
        rank = positive_integer("rank", rank, self.config.hidden_size)
        if lora_alpha is not None:
            require_positive("lora_alpha", lora_alpha)
        if target_layer_names == "all":
            target_layer_names = tuple(LORA_LAYERS)
        if isinstance(target_layer_names, str):
            target_layer_names = (target_layer_names,)
        for target in target_layer_names or [None]:
            require_choice("target_layer_names", target, [*LORA_LAYERS])
        if adapted_layers(self):
            raise InputError(
                f"{self.name} has LoRA adapters already. Call merge_lora first."
            )
        paths = [
            f"encoder/layer_{index}/{LORA_LAYERS[target]}"
            for index in range(self.config.num_hidden_layers)
            for target in target_layer_names
        ]
        self.add_adapters(dict.fromkeys(paths, (rank, lora_alpha)))

    def add_adapters(self, layers: Mapping[str, Sequence]) -> None:
        """Freezes the encoder; adds adapters from a result of `adapters`."""
        if any(layer.quantization_mode for _, layer in dense_layers(self)):
            raise InputError(
                f"{self.name} is quantized. Call enable_lora before quantize."
            )
        self.build()
        encoder = self._encoder()
        encoder.trainable = True
        encoder.freeze(self.config.num_hidden_layers)
        if encoder.pooler is not None:
            encoder.pooler.trainable = False
        dense = dict(dense_layers(encoder))
        for path, (rank, alpha) in layers.items():
            dense[path].enable_lora(rank, alpha)
        renew_optimizer(self)

    def adapters(self) -> dict[str, list]:
        """Returns rank and alpha of the encoder's adapters, by layer."""
        layers = adapted_layers(self._encoder())
        return {n: [x.lora_rank, x.lora_alpha] for n, x in layers.items()}

    def build_weights(self, is_restored: bool) -> Self:
        """Builds and returns the model.

        If `is_restored`, the weights are restored next, and embeddings and
        blocks start as zeros: random values would take half of the time to load
        a model. Heads and poolers, which a checkpoint may lack, get their usual
        initial values.
        """
        if is_restored:
            encoder = self._encoder()
            encoder.embeddings.starts_as_zeros = True
            for _, layer in dense_layers(encoder.encoder):
                layer.kernel_initializer = keras.initializers.Zeros()
        # Keras keeps these shapes, for `summary` and exports.
        self.build(self.feature_shapes(None))
        return self

    def _encoder(self) -> Any:
        """Returns the `BertModel`: the model itself, or the one in it."""
        return getattr(self, "bert", self)

    def merge_lora(self) -> None:
        """Adds the adapters to the kernels and removes them.

        Outputs do not change. The encoder stays frozen; call its `freeze(0,
        embeddings=False)` to train all of it except the pooler. Does nothing if
        there are no adapters.
        """
        layers = adapted_layers(self)
        for layer in layers.values():
            layer.merge_lora()
        if layers:
            renew_optimizer(self)

    def save_lora_weights(self, filepath: str | os.PathLike[str]) -> None:
        """Writes what `enable_lora` trains, without the rest of the model.

        Args:
          filepath: A folder in PEFT's format, whose adapters are replaced. It
            also has a checksum of the other weights.

        Raises:
          InputError: If the model has no adapters, or a file cannot be written.
        """
        from bert_tf.checkpoints import adapters

        adapters.save(self, filepath)

    def load_lora_weights(self, filepath: str | os.PathLike[str]) -> None:
        """Loads adapters from `save_lora_weights`; enables LoRA if necessary.

        Args:
          filepath: A folder of `save_lora_weights` or of PEFT, or a file of
            an earlier version of bert_tf.

        Raises:
          InputError: If `filepath` cannot be read, or is for other weights,
            other adapters or another head. The model is then unchanged.
        """
        from bert_tf.checkpoints import adapters

        adapters.load(self, filepath)

    @staticmethod
    def get_layout_map(
        device_mesh: Any,
        model_parallel_dim_name: str = "model",
        data_parallel_dim_name: str = "batch",
    ) -> Any:
        """Returns a `keras.distribution.LayoutMap` for tensor parallelism.

        Source: Shoeybi et al. 2019, "Megatron-LM", section 3. The kernels of
        query, key, value and `intermediate` are split by columns, the kernels
        of `output` by rows, and the word embeddings by the hidden size.

        Example:

            mesh = keras.distribution.DeviceMesh((2, 4), ("batch", "model"))
            layout_map = BertModel.get_layout_map(mesh)
            keras.distribution.set_distribution(
                keras.distribution.ModelParallel(layout_map=layout_map)
            )
            model = BertModel.from_pretrained("bert-base/")

        Args:
          device_mesh: A `keras.distribution.DeviceMesh`.
          model_parallel_dim_name: The axis of the mesh that weights are split
            over. Its size must divide the hidden and the intermediate size.
          data_parallel_dim_name: The axis of the mesh that batches are split
            over; it leaves weights whole.
        """
        columns = ".*(attention/self/(query|key|value)|intermediate/dense)"
        rows = r".*layer_\d+/(attention/)?output/dense"
        axis = model_parallel_dim_name
        layout_map = keras.distribution.LayoutMap(device_mesh)
        layout_map[f"{columns}/(kernel|lora_kernel_b)"] = (None, axis)
        layout_map[f"{columns}/bias"] = (axis,)
        layout_map[f"{rows}/(kernel|lora_kernel_a)"] = (axis, None)
        layout_map[".*word_embeddings"] = (None, axis)
        return layout_map

    def get_config(self):
        config = {**super().get_config(), "config": self.config.to_dict()}
        if lora := self.adapters():
            config["lora"] = lora
        if self.random_variables:
            config["random_variables"] = self.random_variables
        quantized = {
            path: keras.saving.serialize_keras_object(
                getattr(layer, "quantization_config", None)
            )
            for path, layer in dense_layers(self)
            if layer.quantization_mode
            # A map of policies is part of the config already, as `dtype`.
            and not isinstance(layer.dtype_policy, DTypePolicyMap)
        }
        return {**config, "quantized": quantized} if quantized else config

    @classmethod
    def from_config(cls, config, custom_objects=None):
        config = dict(config)
        quantized = config.pop("quantized", {})
        lora = config.pop("lora", {})
        random_variables = config.pop("random_variables", None)
        model = super().from_config(config, custom_objects=custom_objects)
        model.random_variables = random_variables
        layers = dict(dense_layers(model))
        for path, quantization_config in quantized.items():
            layers[path].build_quantized(quantization_config)
        layers = dict(dense_layers(model._encoder()))
        for path, (rank, alpha) in lora.items():
            # `build` enables LoRA.
            layers[path].lora_rank, layers[path].lora_alpha = rank, alpha
        return model

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

            model.export("exported")  # Takes input_ids ...
            spec = keras.InputSpec(
                shape=(None, 128), dtype="int32", name="input_ids"
            )
            model.export("fixed", input_signature=[{"input_ids": spec}])

        Args:
          filepath: The file or folder to write.
          format: A format of Keras: "tf_saved_model", "onnx", "litert" ...
          input_signature: A list with one dict of `keras.InputSpec`. By default
            `input_ids`, `input_mask` and `segment_ids`, int32, of any batch and
            length.
          verbose, **kwargs: See `keras.Model.export`.

        Raises:
          InputError: If the format needs float32 and the model computes in
            another dtype, or the model returns lists of tensors.
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
                f"of them ({', '.join(lists)}). Make a model without these "
                "options, load the weights into it and export it."
            )
        self.build()
        # Keras would assume that ids have the compute dtype.
        features = {
            name: keras.InputSpec(
                shape=(None,) * self.input_rank, dtype="int32", name=name
            )
            for name in INPUTS
        }
        super().export(
            files.path_text(filepath, "filepath"),
            format=format,
            verbose=verbose,
            input_signature=input_signature or [features],
            **kwargs,
        )


def _converted(name: str, value) -> Any:
    """Converts a Python list; Keras would convert each number separately."""
    try:
        return ops.convert_to_tensor(value)
    except (TypeError, ValueError):
        raise wrong_value(name, "an array of integers", value) from None


def _require_range(features: Mapping, name: str, most: int, what: str) -> None:
    """Raises InputError if a known value is not from 0 to `most`."""
    if name not in features or not kernels.has_values(features[name]):
        return
    values = ops.convert_to_numpy(features[name])
    if values.dtype.kind in "OSU":
        raise wrong_value(name, "an array of integers", values)
    is_wrong = ~((values >= 0) & (values <= most))
    if values.dtype.kind not in "iub":
        is_wrong |= values != np.floor(values)
    if is_wrong.any():
        raise wrong_value(
            f"Each value of {name}",
            f"an integer from 0 to {most} ({what})",
            values[is_wrong][0].item(),
        )


def _known_shape(value) -> tuple | None:
    """Returns the shape, or None if TensorFlow does not know the rank."""
    shape = value.shape
    return None if getattr(shape, "rank", 0) is None else tuple(shape)


def _can_be_equal(shape: tuple, other: tuple) -> bool:
    """Returns False if the ranks, or sizes that are known, differ."""
    return len(shape) == len(other) and all(
        a == b or not (isinstance(a, int) and isinstance(b, int))
        for a, b in zip(shape, other, strict=True)
    )


def integers(inputs: Mapping, name: str):
    """Returns a feature as an int32 tensor, or None if it is missing."""
    value = inputs.get(name)
    return None if value is None else ops.convert_to_tensor(value, "int32")
