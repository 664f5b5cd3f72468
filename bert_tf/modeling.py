"""The BERT encoder, in `keras.ops`: TensorFlow, JAX and PyTorch backends.

Source: Devlin et al. 2018, section 3, and google-research/bert `modeling.py`.
Every layer carries the name of its scope in the original, so that a
variable's path is its name in a TF1 checkpoint:
`bert/encoder/layer_0/attention/self/query/kernel`.

Shapes, here and in `heads.py`:

    B  batch            N  attention heads       V  vocabulary
    S  sequence         D  width of a head, H/N  T  token types
    H  hidden size      I  intermediate size     P  masked positions
    K  examples that share a row, where they do

The stack of blocks in the middle is in `transformer.py`.
"""

from collections.abc import Sequence

import keras
from keras import ops

from bert_tf.config import BertConfig
from bert_tf.errors import InputError
from bert_tf.layers import (
    BertLayer,
    Dense,
    FromConfig,
    TakesFeatures,
    fold_in,
    integers,
)
from bert_tf.transformer import Encoder, attention_bias, last_positions


@keras.saving.register_keras_serializable("bert_tf")
class Embeddings(BertLayer):
    """Sum of word, position and token type embeddings, normalized.

    Source: `embedding_lookup` and `embedding_postprocessor`.
    """

    def __init__(self, config, **kwargs):
        super().__init__(config, **kwargs)
        self.layer_norm = self.make_layer_norm()
        self.dropout = self.make_dropout(self.config.hidden_dropout_prob)

    def build(
        self,
        input_ids_shape=None,
        segment_ids_shape=None,
        position_ids_shape=None,
    ):
        self.word_embeddings = self._table("word", self.config.vocab_size)
        self.token_type_embeddings = self._table(
            "token_type", self.config.type_vocab_size
        )
        self.position_embeddings = self._table(
            "position", self.config.max_position_embeddings
        )
        self.layer_norm.build((None, None, self.config.hidden_size))

    def compute_output_shape(
        self, input_ids_shape, segment_ids_shape=None, position_ids_shape=None
    ):
        return (*input_ids_shape, self.config.hidden_size)

    def _table(self, name: str, rows: int):
        return self.add_weight(
            name=f"{name}_embeddings",
            shape=(rows, self.config.hidden_size),
            initializer=self.make_initializer(),
            # The rows that are looked up are cast, not all of them each time.
            autocast=False,
        )

    def call(
        self,
        input_ids,
        segment_ids,
        position_ids=None,
        training=False,
        seed=None,
    ):
        """Embeds the ids.

        Args:
          input_ids: Integers [B, S].
          segment_ids: Integers [B, S], see `BertModel.call`.
          position_ids: Integers [B, S], or None for 0 to S - 1 in every row.
          training: Whether dropout is on.
          seed: Integer tensor [2] or None, see `Dropout`.

        Returns:
          Floats [B, S, H].
        """
        if position_ids is None:
            positions = self.position_embeddings[: ops.shape(input_ids)[1]]
        else:
            positions = ops.take(self.position_embeddings, position_ids, axis=0)
        # A product with a one-hot matrix, as in the original: the table has
        # two rows, and its gradient needs no scatter.
        segments = ops.one_hot(
            segment_ids, self.config.type_vocab_size, dtype=self.compute_dtype
        )
        types = ops.cast(self.token_type_embeddings, self.compute_dtype)
        words = ops.take(self.word_embeddings, input_ids, axis=0)
        x = (
            ops.cast(words, self.compute_dtype)
            + ops.matmul(segments, types)
            + ops.cast(positions, self.compute_dtype)
        )  # [B, S, H]
        return self.dropout(self.layer_norm(x), training=training, seed=seed)


@keras.saving.register_keras_serializable("bert_tf")
class Pooler(BertLayer):
    """tanh(dense(vector of one token)): the vector for the whole input.

    That of [CLS], or, in a model that looks to the left alone, of the last.
    """

    def __init__(self, config, **kwargs):
        super().__init__(config, **kwargs)
        self.dense = self.make_dense(self.config.hidden_size)

    def build(self, sequence_output_shape=None, positions_shape=None):
        self.dense.build((None, self.config.hidden_size))

    def compute_output_shape(self, sequence_output_shape, positions_shape=None):
        rows = positions_shape or sequence_output_shape[:1]
        return (*rows, self.config.hidden_size)

    def call(self, sequence_output, positions=None):
        """Pools each example.

        Args:
          sequence_output: Floats [B, S, H].
          positions: Integers [B, K], where the token of each example is; None
            for one example a row, of which it is the first.

        Returns:
          Floats [B, K, H], or [B, H] without `positions`.
        """
        if positions is None:
            chosen = sequence_output[:, 0]
        else:
            chosen = ops.take_along_axis(
                sequence_output, positions[..., None], axis=1
            )  # [B, K, H]
        return ops.tanh(self.dense(chosen))


@keras.saving.register_keras_serializable("bert_tf")
class BertModel(TakesFeatures, FromConfig, keras.Model):
    """The BERT encoder: token ids in, vectors out.

    Example:

        model = BertModel(BertConfig.from_name("tiny", vocab_size=30522))
        outputs = model({"input_ids": [[101, 7592, 102]]})
        outputs["sequence_output"]  # [1, 3, 128]
        outputs["pooled_output"]  # [1, 128]

    Several short examples can share a row, which saves the padding that each
    would have in a row of its own. `example_ids` keep them from looking at
    each other, so that every vector is what it would be there:

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
      config: A `BertConfig`, or the dict that its `to_dict` gave.
      output_hidden_states: Also return `hidden_states`, the embeddings and
        every block's output: a list of num_hidden_layers + 1 floats [B, S, H].
      output_attentions: Also return `attentions`, every block's attention
        probabilities: a list of num_hidden_layers floats [B, N, S, S].
      gradient_checkpointing: Trade time for memory, see `Encoder`.
      frozen_layers: Names of what is not to be trained: `embeddings`,
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
        # Inputs are ids: as floats in bfloat16 they would be other ids.
        self.autocast = False
        self.output_hidden_states = output_hidden_states
        self.output_attentions = output_attentions
        self.embeddings = self.make_part(Embeddings, "embeddings")
        self.encoder = self.make_part(
            Encoder,
            "encoder",
            output_attentions=output_attentions,
            gradient_checkpointing=gradient_checkpointing,
        )
        self.pooler = None
        if add_pooling_layer:
            self.pooler = self.make_part(Pooler, "pooler")
        for layer_name in frozen_layers:
            self._part(layer_name).trainable = False

    def build(self, input_shape=None):
        if self.built:
            return
        shapes = self.feature_shapes(input_shape)
        # `summary` shows the shapes that parts are built with.
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
          inputs: Dict of integers [B, S], of which all but the first may be
            left out. Ids must be in range: not every backend says so.
            - `input_ids`: The tokens.
            - `input_mask`: 1 for tokens, 0 for padding; all ones if left out.
            - `segment_ids`: 0 for the first text, 1 for the second; all 0.
            - `position_ids`: Rows of the table of positions; 0 to S - 1.
            - `example_ids`: Tokens look at those of the same number only; all
              the same.
            - `cls_positions` [B, K]: Where to pool; at the first token. Left
              to right, these begin the examples whose last tokens are pooled.
            Others are ignored.
          training: Whether dropout is on.
          seed: Integer tensor [2] that decides every dropout mask, or None
            for the layers' own generators.

        Returns:
          Dict of `sequence_output` [B, S, H], `pooled_output` [B, H], or
          [B, K, H] with `cls_positions`, unless there is no pooler, and what
          the constructor asked for.

        Raises:
          InputError: The sequence is longer than `max_position_embeddings`,
            and there are no `position_ids`.
        """
        return self._result(*self._encode(inputs, seed, training=training))

    def pooled_output(self, inputs, training=None, seed=None):
        """The `pooled_output` of `call` alone, in less time.

        The last block computes the first position only, that of [CLS], unless
        others are pooled. The arguments are those of `call`; `training` is
        that of the calling layer if not given.
        """
        if self.pooler is None:
            raise InputError(
                f"expected {self.name} to have a pooler. Received: a model "
                "made without one; make it with add_pooling_layer=True"
            )
        if not self.built:
            self.build()
        # None would count as given: inner layers would not look around them.
        given = {} if training is None else {"training": training}
        features = self.checked(inputs)
        is_first = not self.config.is_left_to_right
        number = 1 if is_first and "cls_positions" not in features else None
        return self._encode(features, seed, num_queries=number, **given)[-1]

    def _encode(self, inputs, seed, num_queries: int | None = None, **given):
        """All that `_result` takes; `given` may have `training`."""
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
        places = integers(inputs, "cls_positions")
        if not self.config.is_left_to_right:
            return self.pooler(vectors, places)
        last = last_positions(input_mask, example_ids, places)
        pooled = self.pooler(vectors, last)  # [B, K or 1, H]
        return pooled[:, 0] if places is None else pooled

    def _result(self, embedded, outputs, attentions, pooled) -> dict:
        """Names what is returned: tensors, or their shapes."""
        result = {"sequence_output": outputs[-1]}
        if pooled is not None:
            result["pooled_output"] = pooled
        if self.output_hidden_states:
            result["hidden_states"] = [embedded, *outputs]
        if self.output_attentions:
            result["attentions"] = attentions
        return result

    def _check_length(self, length) -> None:
        """Knows nothing of lengths that are None or a symbol of JAX's."""
        limit = self.config.max_position_embeddings
        if isinstance(length, int) and length > limit:
            raise InputError(
                f"expected at most {limit} positions, the config's "
                f"max_position_embeddings. Received: a sequence of {length}"
            )

    @property
    def gradient_checkpointing(self) -> bool:
        """Whether a step computes blocks twice; `compile` anew when set."""
        return self.encoder.gradient_checkpointing

    @gradient_checkpointing.setter
    def gradient_checkpointing(self, value: bool) -> None:
        self.encoder.gradient_checkpointing = value

    def freeze(self, num_layers: int, embeddings: bool = True) -> None:
        """Leaves the lowest layers as they are when the rest is trained.

        Call it before `compile`, or before an optimizer is built. What is
        frozen stays so when the model is saved and loaded; Keras's own
        `trainable = True`, set on the whole model, undoes it. The blocks above
        are trained again: `freeze(0, embeddings=False)` undoes it all. The
        pooler stays as it is. LoRA adapters are trained in frozen layers too,
        whether `enable_lora` is called before or after.

        Args:
          num_layers: How many blocks, counted from the embeddings.
          embeddings: Whether the embeddings are frozen too.

        Raises:
          InputError: There are not that many blocks.
        """
        blocks = self.encoder.blocks
        if not 0 <= num_layers <= len(blocks):
            raise InputError(
                f"expected 0 to {len(blocks)} layers to freeze, as many as "
                f"the model has. Received: {num_layers}"
            )
        self.embeddings.trainable = not embeddings
        for index, block in enumerate(blocks):
            block.trainable = index >= num_layers
            for layer in block._flatten_layers():
                if isinstance(layer, Dense):
                    layer.train_adapters()

    @property
    def frozen_layers(self) -> list[str]:
        """Names of the layers that are not trained, lowest first."""
        return [n for n, part in self._parts().items() if not part.trainable]

    def _part(self, name: str) -> BertLayer:
        parts = self._parts()
        if name not in parts:
            raise InputError(
                f"expected frozen_layers among {', '.join(parts)}. "
                f"Received: {name!r}"
            )
        return parts[name]

    def _parts(self) -> dict[str, BertLayer]:
        parts = (self.embeddings, *self.encoder.blocks, self.pooler)
        return {part.name: part for part in parts if part is not None}

    def get_config(self):
        return {
            **super().get_config(),
            "output_hidden_states": self.output_hidden_states,
            "output_attentions": self.output_attentions,
            "gradient_checkpointing": self.gradient_checkpointing,
            "frozen_layers": self.frozen_layers,
            "add_pooling_layer": self.pooler is not None,
        }


def checkpoint_variables(model: keras.Model) -> dict[str, keras.Variable]:
    """Names the weights of a model as a TF1 checkpoint does.

    The encoder is `bert`, whatever its name and however deep in the model it
    is; what stands in front of it, such as the name of a subclassed
    `keras.Model`, is left out everywhere.

    Args:
      model: A model, built, with one `BertModel` in it or none.

    Returns:
      Dict from name to variable, in the order of creation.

    Raises:
      InputError: There are several encoders, or the model is quantized.
    """
    if any(v.dtype == "int8" for v in model.weights):
        raise InputError(
            f"{model.name} is quantized to int8, which no checkpoint holds. "
            "Load or convert its weights before you call quantize."
        )
    paths = [v.path for v in model.weights]
    found = [p for p in paths if f"/{p}".endswith(_TABLE)]
    if len(found) > 1:
        raise InputError(
            "expected a model with one encoder. Received: "
            f"{len(found)} of them in {model.name!r}; take them one by one"
        )
    outer, encoder = f"{model.name}/", None
    if found:
        encoder = found[0].removesuffix(_TABLE)
        outer = encoder[: encoder.rfind("/") + 1]
    return {
        _checkpoint_name(path, encoder, outer): variable
        for path, variable in zip(paths, model.weights, strict=True)
    }


def encoder_config(model: keras.Model) -> BertConfig | None:
    """The configuration of the encoder in a model; None if there is none.

    It looks into models inside of models, and not into layers.
    """
    if isinstance(model, BertModel):
        return model.config
    inner = (layer for layer in model.layers if isinstance(layer, keras.Model))
    return next(filter(None, map(encoder_config, inner)), None)


# Where the path of every encoder's first variable ends.
_TABLE = "/embeddings/word_embeddings"


def _checkpoint_name(path: str, encoder: str | None, outer: str) -> str:
    if encoder is not None and path.startswith(f"{encoder}/"):
        return f"bert/{path[len(encoder) + 1 :]}"
    return path.removeprefix(outer)
