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
from collections.abc import Sequence

import keras
from keras import ops

from bert_tf.config import BertConfig
from bert_tf.errors import InputError, require_choice, wrong_value
from bert_tf.modeling.dense import adapted_layers, dense_layers
from bert_tf.modeling.feature_model import FeatureModel, integers
from bert_tf.modeling.transformer import (
    BertLayer,
    Embeddings,
    Encoder,
    Pooler,
    attention_bias,
    fold_in,
    last_positions,
)


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

    head_name = "encoder"

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
        if isinstance(frozen_layers, str):
            frozen_layers = (frozen_layers,)
        for layer_name in frozen_layers:
            require_choice("frozen_layers", layer_name, [*layers])
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
            - `cls_positions` [B, K]: The first token of each of K examples in a
              row; by default position 0. The pooler uses these tokens or, in a
              left-to-right model, the last token of each example.
          training: Whether dropout is on.
          seed: Integer tensor [2] that determines the dropout masks, or None
            for the layers' own generators.

        Returns:
          Dict of `sequence_output` [B, S, H]; `pooled_output` [B, H], or
          [B, K, H] with `cls_positions`, unless there is no pooler; and the
          outputs that the constructor asked for.

        Raises:
          InputError: If there are no `position_ids`, and the sequence is longer
            than `max_position_embeddings`.
        """
        return self._result(*self._encode(inputs, seed, training=training))

    def pooled_output(self, inputs, training=None, seed=None):
        """Returns only the `pooled_output` of `call`, in less time.

        The last block computes only the position of [CLS], unless
        `cls_positions` is passed or the model is left-to-right. Takes the
        arguments of `call`; `training` is inherited from the calling layer by
        default.
        """
        if self.pooler is None:
            raise InputError(
                f"{self.name} has no pooler. Make the model with "
                "add_pooling_layer=True."
            )
        if not self.built:
            self.build()
        # An explicit None stops Keras from inheriting `training`.
        keywords = {} if training is None else {"training": training}
        features = self.check_features(inputs)
        pools_first = not (
            self.config.is_left_to_right or "cls_positions" in features
        )
        return self._encode(
            features, seed, num_queries=1 if pools_first else None, **keywords
        )[-1]

    def _encode(self, inputs, seed, num_queries: int | None = None, **keywords):
        """Returns the arguments of `_result`.

        Without `training` in `keywords`, Keras passes the caller's.
        """
        input_ids = integers(inputs, "input_ids")
        position_ids = integers(inputs, "position_ids")
        if position_ids is None:
            self._check_length(input_ids.shape[1])
        segment_ids = integers(inputs, "segment_ids")
        if segment_ids is None:
            segment_ids = ops.zeros_like(input_ids)
        embedded = self.embeddings(
            input_ids, segment_ids, position_ids, seed=seed, **keywords
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
            **keywords,
        )
        pooled = self._pool(outputs[-1], inputs, input_mask, example_ids)
        return embedded, outputs, attentions, pooled

    def _pool(self, vectors, inputs, input_mask, example_ids):
        """Returns a vector for each example, or None if there is no pooler.

        Args:
          vectors: The encoder's last outputs, floats [B, S, H].
          inputs: The features of the batch.
          input_mask: Integers [B, S].
          example_ids: Integers [B, S], or None.
        """
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
        LoRA adapters are trained in frozen layers too, whether `enable_lora` is
        called before or after `freeze`. Layers frozen by `enable_lora` stay
        frozen.

        Args:
          num_layers: The number of blocks to freeze, from the embeddings up.
          embeddings: Whether to freeze the embeddings.

        Raises:
          InputError: If the model has fewer blocks.
        """
        blocks = self.encoder.blocks
        if num_layers not in range(len(blocks) + 1):
            raise wrong_value(
                "The number of layers to freeze",
                f"from 0 to {len(blocks)}, the layers of the model",
                num_layers,
            )
        stay = self.frozen_layers if adapted_layers(self) else []
        self.embeddings.trainable = not (embeddings or "embeddings" in stay)
        for index, block in enumerate(blocks):
            block.trainable = index >= num_layers and block.name not in stay
            for _, layer in dense_layers(block):
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


def resize_vocabulary(model: keras.Model, vocab_size: int) -> keras.Model:
    """Copies a model and adds words at the end of its vocabulary.

    The embedding of a new word, and its bias in the masked-LM head, is the mean
    of the old ones. The score of a new word is then the mean of the old words'
    scores. With k new words, each old word keeps at least V / (V + k) of its
    probability, while a random embedding could get nearly all of it. Source:
    Hewitt 2021, "Initializing New Word Embeddings for Pretrained Language
    Models".

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
