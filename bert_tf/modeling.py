"""The BERT encoder, in `keras.ops`: TensorFlow, JAX and PyTorch backends.

Source: Devlin et al. 2018, section 3, and google-research/bert `modeling.py`.
Every layer has the name of its scope in the original, so that the path of a
variable is its name in a TF1 checkpoint:
`bert/encoder/layer_0/attention/self/query/kernel`.

Shapes, here, in `transformer.py` and in `heads.py`:

    B  batch            N  attention heads       V  vocabulary
    S  sequence         D  width of a head, H/N  T  token types
    H  hidden size      I  intermediate size     P  masked positions
    K  examples in one row, if several share it

The layers are in `transformer.py`.
"""

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

import keras
from keras import ops

from bert_tf.config import BertConfig
from bert_tf.errors import InputError, wrong_value
from bert_tf.transformer import (
    BertLayer,
    Dense,
    Embeddings,
    Encoder,
    Pooler,
    attention_bias,
    fold_in,
    last_positions,
)

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

# The inputs of an exported model.
EXPORTED_FEATURES = ("input_ids", "input_mask", "segment_ids")
# Converters to these formats write bfloat16 models that cannot be loaded.
_FLOAT32_FORMATS = ("onnx", "litert")


class FeatureModel(keras.Model):
    """A model with a `BertConfig` that takes a dict of features.

    Features may also be passed as keywords: `model(input_ids=ids)`. They are
    checked in `__call__`, since Keras adds many lines to errors from `call`.

    Attributes:
      checkpoint: What `from_pretrained` found beside the weights (vocabulary,
        casing, labels): an `interop.checkpoint.Pretrained`. None for other
        models.
    """

    # Number of axes of `input_ids`: batch and sequence.
    input_rank = 2
    checkpoint: Any = None

    def __init__(self, config: BertConfig | dict, **kwargs):
        super().__init__(**kwargs)
        if isinstance(config, dict):
            config = BertConfig.from_dict(config)
        self.config = config
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
            `labels` and `num_labels` they have the checkpoint's.

        Returns:
          A built model. Parts that the checkpoint lacks, such as a new head,
          are random; the log lists them.

        Raises:
          InputError: If the checkpoint cannot be read, has no configuration or
            does not fit the options.
        """
        # Readers of checkpoints import the models.
        from bert_tf import pretrained

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

        A model from `from_pretrained` brings its vocabulary and labels along.

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
        from bert_tf import pretrained

        pretrained.save(self, folder, format, tokenizer, labels)

    def __call__(self, inputs=None, *args, **kwargs):
        if inputs is None:
            names = [name for name in kwargs if name in _KEYWORDS]
            inputs = {name: kwargs.pop(name) for name in names}
        return super().__call__(self.check_features(inputs), *args, **kwargs)

    def check_features(self, inputs) -> dict:
        """Returns the features that are not None, as tensors.

        Raises:
          InputError: If `input_ids` is missing, or a feature has the name of
            another library or the wrong shape.
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
            # Keras converts a Python list number by number.
            name: ops.convert_to_tensor(x) if isinstance(x, list) else x
            for name, x in inputs.items()
            if x is not None
        }
        self._check_shapes(features)
        return features

    def _check_shapes(self, features: dict) -> None:
        """Compares the known sizes of the features."""
        shape = _known_shape(features["input_ids"])
        if shape is None:
            return
        if len(shape) != self.input_rank:
            raise wrong_value(
                f"The shape of input_ids of {self.name}",
                f"[{', '.join(_AXES[self.input_rank])}]",
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

    def get_config(self):
        config = {**super().get_config(), "config": self.config.to_dict()}
        quantized = {
            path: keras.saving.serialize_keras_object(
                getattr(layer, "quantization_config", None)
            )
            for path, layer in _dense_layers(self)
            if layer.quantization_mode
        }
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
          format: A format of Keras: "tf_saved_model", "onnx", "litert" ...
          input_signature: A list with one dict of `keras.InputSpec`. By default
            the features `EXPORTED_FEATURES`, int32, of any batch and length.
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
            for name in EXPORTED_FEATURES
        }
        super().export(
            filepath,
            format=format,
            verbose=verbose,
            input_signature=input_signature or [features],
            **kwargs,
        )


def _dense_layers(
    layer: keras.layers.Layer, path: str = ""
) -> Iterator[tuple[str, Dense]]:
    """Yields the dense layers in a layer, with their paths of names."""
    for inner in layer._flatten_layers(include_self=False, recursive=False):
        inner_path = f"{path}{inner.name}"
        if isinstance(inner, Dense):
            yield inner_path, inner
        yield from _dense_layers(inner, f"{inner_path}/")


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


@keras.saving.register_keras_serializable("bert_tf")
class BertModel(FeatureModel):
    """The BERT encoder: token ids in, vectors out.

    Example:

        model = BertModel(BertConfig.from_name("tiny", vocab_size=30522))
        outputs = model({"input_ids": [[101, 7592, 102]]})
        outputs["sequence_output"]  # [1, 3, 128]
        outputs["pooled_output"]  # [1, 128]

    Several short examples can share a row, which saves padding. With
    `example_ids` they do not attend to each other, so that every vector is
    the same as in a separate row:

        outputs = model(
            {
                "input_ids": [[101, 7592, 102, 101, 2088, 102]],
                "position_ids": [[0, 1, 2, 0, 1, 2]],
                "example_ids": [[1, 1, 1, 2, 2, 2]],
                "cls_positions": [[0, 3]],
            }
        )
        outputs["pooled_output"]  # [1, 2, 128]

    Args:
      config: A `BertConfig`, or the dict from its `to_dict`.
      output_hidden_states: Whether to return `hidden_states`, the embeddings
        and the output of every block: a list of floats [B, S, H].
      output_attentions: Whether to return `attentions`, the attention
        probabilities of every block: a list of floats [B, N, S, S].
      gradient_checkpointing: Whether training saves memory at the cost of
        time, see `Encoder`.
      frozen_layers: Names of layers that are not trained: `embeddings`,
        `layer_0` and so on, `pooler`. See `freeze`.
      add_pooling_layer: Whether the model has a pooler. Without one it returns
        no `pooled_output`, and `load_checkpoint` ignores a pooler's weights.
    """

    def __init__(
        self,
        config: BertConfig | dict,
        output_hidden_states: bool = False,
        output_attentions: bool = False,
        gradient_checkpointing: bool = False,
        frozen_layers: Sequence[str] = (),
        add_pooling_layer: bool = True,
        name: str = "bert",
        **kwargs,
    ):
        super().__init__(config, name=name, **kwargs)
        self.output_hidden_states = output_hidden_states
        self.output_attentions = output_attentions
        dtype = self.dtype_policy
        self.embeddings = Embeddings(
            self.config, name="embeddings", dtype=dtype
        )
        self.encoder = Encoder(
            self.config,
            output_attentions=output_attentions,
            gradient_checkpointing=gradient_checkpointing,
            name="encoder",
            dtype=dtype,
        )
        self.pooler = None
        if add_pooling_layer:
            self.pooler = Pooler(self.config, name="pooler", dtype=dtype)
        layers = self._layers_by_name()
        for layer_name in frozen_layers:
            if layer_name not in layers:
                raise wrong_value(
                    "frozen_layers", f"among {', '.join(layers)}", layer_name
                )
            layers[layer_name].trainable = False

    def build(self, input_shape=None):
        if self.built:
            return
        shapes = self.feature_shapes(input_shape)
        # `summary` shows the shapes that layers are built with.
        self.embeddings.build(shapes["input_ids"])
        embedded = self.embeddings.compute_output_shape(shapes["input_ids"])
        self.encoder.build(embedded)
        if self.pooler is not None:
            self.pooler.build(embedded, shapes.get("cls_positions"))

    def compute_output_shape(self, input_shape):
        shapes = self.feature_shapes(input_shape)
        ids = shapes["input_ids"]
        if "position_ids" not in shapes:
            self._check_length(ids[1])
        embedded = self.embeddings.compute_output_shape(ids)
        outputs, attentions = self.encoder.compute_output_shape(embedded)
        pooled = None
        if self.pooler is not None:
            pooled = self.pooler.compute_output_shape(
                embedded, shapes.get("cls_positions")
            )
        return self._result(embedded, outputs, attentions, pooled)

    def call(self, inputs, training=False, seed=None):
        """Encodes a batch.

        Args:
          inputs: Dict of integers [B, S]. Only `input_ids` is required; other
            keys are ignored, except Hugging Face's names, which are errors. Not
            every backend checks the range of ids.
            - `input_ids`: The token ids.
            - `input_mask`: 1 for tokens, 0 for padding; by default all 1.
            - `segment_ids`: 0 for the first text, 1 for the second; by default
              all 0.
            - `position_ids`: Rows of the position table; by default 0 to S - 1.
            - `example_ids`: Tokens attend only to tokens with the same number;
              by default one example per row.
            - `cls_positions` [B, K]: The positions to pool; by default the
              first. A left-to-right model pools the last position of the
              example that begins at each.
          training: Whether dropout is on.
          seed: Integer tensor [2] that determines the dropout masks, or None
            for the layers' own generators.

        Returns:
          Dict of `sequence_output` [B, S, H]; `pooled_output` [B, H], or
          [B, K, H] with `cls_positions`, unless there is no pooler; and the
          outputs that the constructor asked for.

        Raises:
          InputError: If the sequence is longer than `max_position_embeddings`,
            without `position_ids`.
        """
        return self._result(*self._encode(inputs, seed, training=training))

    def pooled_output(self, inputs, training=None, seed=None):
        """Returns only the `pooled_output` of `call`, in less time.

        The last block computes only the position of [CLS], unless others are
        pooled. The arguments are those of `call`; `training` is inherited from
        the calling layer by default.
        """
        if self.pooler is None:
            raise InputError(
                f"{self.name} has no pooler. Make the model with "
                "add_pooling_layer=True."
            )
        if not self.built:
            self.build()
        # An explicit None stops Keras from inheriting `training`.
        given = {} if training is None else {"training": training}
        features = self.check_features(inputs)
        pools_first = not (
            self.config.is_left_to_right or "cls_positions" in features
        )
        return self._encode(
            features, seed, num_queries=1 if pools_first else None, **given
        )[-1]

    def _encode(self, inputs, seed, num_queries: int | None = None, **given):
        """Returns the arguments of `_result`.

        `given` contains `training`, or nothing: Keras then passes the caller's.
        """
        input_ids = integers(inputs, "input_ids")
        position_ids = integers(inputs, "position_ids")
        if position_ids is None:
            self._check_length(input_ids.shape[1])
        segment_ids = integers(inputs, "segment_ids")
        if segment_ids is None:
            segment_ids = ops.zeros_like(input_ids)
        embedded = self.embeddings(
            input_ids, segment_ids, position_ids, seed=seed, **given
        )
        input_mask = inputs.get("input_mask", ops.ones_like(input_ids))
        example_ids = integers(inputs, "example_ids")
        outputs, attentions = self.encoder(
            embedded,
            attention_bias(
                input_mask, example_ids, self.config.is_left_to_right
            ),
            seed=fold_in(seed, 1),
            num_queries=num_queries,
            **given,
        )
        pooled = self._pool(outputs[-1], inputs, input_mask, example_ids)
        return embedded, outputs, attentions, pooled

    def _pool(self, vectors, inputs, input_mask, example_ids):
        """Pools each example of floats [B, S, H]; None without a pooler."""
        if self.pooler is None:
            return None
        positions = integers(inputs, "cls_positions")
        if not self.config.is_left_to_right:
            return self.pooler(vectors, positions)
        last = last_positions(input_mask, example_ids, positions)
        pooled = self.pooler(vectors, last)  # [B, K or 1, H]
        return pooled[:, 0] if positions is None else pooled

    def _result(self, embedded, outputs, attentions, pooled) -> dict:
        """Returns the outputs, tensors or shapes, by name."""
        result = {"sequence_output": outputs[-1]}
        if pooled is not None:
            result["pooled_output"] = pooled
        if self.output_hidden_states:
            result["hidden_states"] = [embedded, *outputs]
        if self.output_attentions:
            result["attentions"] = attentions
        return result

    def with_attentions(self, scores: dict, encoded: dict) -> dict:
        """Adds the encoder's attentions, or their shapes, to a head's scores.

        Returns `scores` unchanged without `output_attentions`.
        """
        if self.output_attentions:
            return {**scores, "attentions": encoded["attentions"]}
        return scores

    def _check_length(self, length) -> None:
        """Checks a sequence length, unless it is None or a symbol of JAX."""
        limit = self.config.max_position_embeddings
        if isinstance(length, int) and length > limit:
            raise wrong_value(
                "The sequence length",
                f"at most {limit} (max_position_embeddings of the config)",
                length,
            )

    @property
    def gradient_checkpointing(self) -> bool:
        """Whether training recomputes blocks; call `compile` after a change."""
        return self.encoder.gradient_checkpointing

    @gradient_checkpointing.setter
    def gradient_checkpointing(self, value: bool) -> None:
        self.encoder.gradient_checkpointing = value

    def freeze(self, num_layers: int, embeddings: bool = True) -> None:
        """Freezes the lowest layers and trains the blocks above.

        Call it before `compile`, or before an optimizer is built. Frozen
        layers stay frozen when the model is saved and loaded, until Keras's
        `trainable = True` is set on the whole model or
        `freeze(0, embeddings=False)` is called. The pooler is not changed.
        LoRA adapters are trained in frozen layers too, whether `enable_lora`
        is called before or after.

        Args:
          num_layers: The number of blocks to freeze, from the embeddings up.
          embeddings: Whether to freeze the embeddings.

        Raises:
          InputError: If the model has fewer blocks.
        """
        blocks = self.encoder.blocks
        if not 0 <= num_layers <= len(blocks):
            raise wrong_value(
                "The number of layers to freeze",
                f"from 0 to {len(blocks)}, the layers of the model",
                num_layers,
            )
        self.embeddings.trainable = not embeddings
        for index, block in enumerate(blocks):
            block.trainable = index >= num_layers
            for _, layer in _dense_layers(block):
                layer.train_adapters()

    @property
    def frozen_layers(self) -> list[str]:
        """The names of the layers that are not trained, lowest first."""
        layers = self._layers_by_name()
        return [name for name, layer in layers.items() if not layer.trainable]

    def _layers_by_name(self) -> dict[str, BertLayer]:
        layers = (self.embeddings, *self.encoder.blocks, self.pooler)
        return {layer.name: layer for layer in layers if layer is not None}

    def get_config(self):
        return {
            **super().get_config(),
            "output_hidden_states": self.output_hidden_states,
            "output_attentions": self.output_attentions,
            "gradient_checkpointing": self.gradient_checkpointing,
            "frozen_layers": self.frozen_layers,
            "add_pooling_layer": self.pooler is not None,
        }

    def shared_options(self) -> dict:
        """Returns the options that models with a head take too."""
        names = ("gradient_checkpointing", "frozen_layers", "output_attentions")
        return {name: getattr(self, name) for name in names}


# The end of the path of every encoder's first variable.
_FIRST_VARIABLE = "/embeddings/word_embeddings"


def checkpoint_variables(model: keras.Model) -> dict[str, keras.Variable]:
    """Returns the weights of a built model by their names in a TF1 checkpoint.

    The encoder is called `bert`, whatever its name and its depth in the model.
    Everything before it in a path, such as the name of a subclassed
    `keras.Model`, is left out. The order is that of creation.

    Raises:
      InputError: If there are several encoders, or the model is quantized.
    """
    if any(v.dtype == "int8" for v in model.weights):
        raise InputError(
            f"{model.name} is quantized to int8, which checkpoints cannot "
            "hold. Load or convert its weights before you call quantize."
        )
    paths = [v.path for v in model.weights]
    found = [p for p in paths if f"/{p}".endswith(_FIRST_VARIABLE)]
    if len(found) > 1:
        raise InputError(
            f"{model.name!r} has {len(found)} encoders. Load or convert them "
            "one by one."
        )
    outer, encoder = f"{model.name}/", None
    if found:
        encoder = found[0].removesuffix(_FIRST_VARIABLE)
        outer = encoder[: encoder.rfind("/") + 1]

    def name_of(path: str) -> str:
        if encoder is not None and path.startswith(f"{encoder}/"):
            return f"bert/{path[len(encoder) + 1 :]}"
        return path.removeprefix(outer)

    return {name_of(v.path): v for v in model.weights}


def encoder_config(model: keras.Model) -> BertConfig | None:
    """Returns the config of the encoder in a model, or None.

    Searches nested models, but not inside other layers.
    """
    if isinstance(model, BertModel):
        return model.config
    inner = (layer for layer in model.layers if isinstance(layer, keras.Model))
    return next(filter(None, map(encoder_config, inner)), None)


def resize_vocabulary(model: keras.Model, vocab_size: int) -> keras.Model:
    """Copies a model and adds words at the end of its vocabulary.

    The embedding of a new word, and its bias in the masked-LM head, is the mean
    of the old ones. The score of a new word is then the mean of the scores of
    the old words, and its probability at most the mean of theirs (Jensen): with
    k new words each old word keeps at least V / (V + k) of its probability,
    while a random embedding could get nearly all of it. Source: Hewitt 2021,
    "Initializing New Word Embeddings for Pretrained Language Models".

    All other weights are equal bit for bit, and frozen layers stay frozen. The
    copy is not compiled. The new words go at the end of `vocab.txt`.

    Args:
      model: A `BertModel` or a model with a head, which is not changed.
      vocab_size: Number of words of the copy.

    Returns:
      A built model of the same class.

    Raises:
      InputError: If `vocab_size` is not an integer or is smaller than the
        model's, or the model is not one of this library.
    """
    if not isinstance(model, FeatureModel):
        raise InputError(
            f"{type(model).__name__} is not a model of bert_tf. Resize the "
            "encoder before you build a model on top of it."
        )
    config = dataclasses.replace(model.config, vocab_size=vocab_size)
    if vocab_size < model.config.vocab_size:
        raise wrong_value(
            "vocab_size",
            f"at least {model.config.vocab_size}, the model's vocabulary",
            vocab_size,
            "Words can be added, but not removed.",
        )
    if not model.built:
        model.build()
    larger = type(model).from_config(
        {**model.get_config(), "config": config.to_dict()}
    )
    larger.build()
    for old, new in zip(model.weights, larger.weights, strict=True):
        # Only tables with a row for each word grow.
        new.assign(_with_mean_rows(old, new.shape[0] - old.shape[0]))
        new.trainable = old.trainable
    return larger


def _with_mean_rows(table, count: int):
    """Appends the mean of the rows `count` times."""
    if count == 0:
        return table
    mean = ops.mean(ops.cast(table, "float32"), axis=0, keepdims=True)
    rows = ops.repeat(ops.cast(mean, table.dtype), count, axis=0)
    return ops.concatenate([ops.convert_to_tensor(table), rows], axis=0)
