"""The BERT encoder, in `keras.ops`: TensorFlow, JAX and PyTorch backends.

Source: Devlin et al. 2018, section 3, and google-research/bert `modeling.py`.
Every layer carries the name of its scope in the original, so that a
variable's path is its name in a TF1 checkpoint:
`bert/encoder/layer_0/attention/self/query/kernel`.

Shapes, here and in `heads.py`:

    B  batch            N  attention heads       V  vocabulary
    S  sequence         D  width of a head, H/N  T  token types
    H  hidden size      I  intermediate size     P  masked positions

Layers compute in the compute dtype of their policy. The softmax and the layer
normalization always run in float32.
"""

import math

import keras
from keras import ops

from bert_tf.config import BertConfig
from bert_tf.errors import InputError
from bert_tf.layers import (
    ACTIVATIONS,
    BertLayer,
    FromConfig,
    TakesFeatures,
    fold_in,
)

# Added to the attention scores of padding. Finite, as in the original: a row
# that is all padding then attends evenly instead of giving NaN.
MASKED_SCORE = -10000.0


@keras.saving.register_keras_serializable("bert_tf")
class Embeddings(BertLayer):
    """Sum of word, position and token type embeddings, normalized.

    Source: `embedding_lookup` and `embedding_postprocessor`.
    """

    def __init__(self, config, **kwargs):
        super().__init__(config, **kwargs)
        self.layer_norm = self.make_layer_norm()
        self.dropout = self.make_dropout(self.config.hidden_dropout_prob)

    def build(self, input_shape=None):
        self.word_embeddings = self._table("word", self.config.vocab_size)
        self.token_type_embeddings = self._table(
            "token_type", self.config.type_vocab_size
        )
        self.position_embeddings = self._table(
            "position", self.config.max_position_embeddings
        )
        self.layer_norm.build((None, None, self.config.hidden_size))

    def _table(self, name: str, rows: int):
        return self.add_weight(
            name=f"{name}_embeddings",
            shape=(rows, self.config.hidden_size),
            initializer=self.make_initializer(),
        )

    def call(self, input_ids, segment_ids, training=False, seed=None):
        """Embeds the ids.

        Args:
          input_ids: Integers [B, S].
          segment_ids: Integers [B, S], 0 for the first text and 1 for the
            second.
          training: Whether dropout is on.
          seed: Integer tensor [2] or None, see `Dropout`.

        Returns:
          Floats [B, S, H].
        """
        length = ops.shape(input_ids)[1]
        # A product with a one-hot matrix, as in the original: the table has
        # two rows, and its gradient needs no scatter.
        segments = ops.one_hot(
            segment_ids, self.config.type_vocab_size, dtype=self.compute_dtype
        )
        x = (
            ops.take(self.word_embeddings, input_ids, axis=0)
            + ops.matmul(segments, self.token_type_embeddings)
            + self.position_embeddings[:length]
        )  # [B, S, H]
        return self.dropout(self.layer_norm(x), training=training, seed=seed)


@keras.saving.register_keras_serializable("bert_tf")
class SelfAttention(BertLayer):
    """Multi-head scaled dot-product attention; source: `attention_layer`."""

    def __init__(self, config, **kwargs):
        super().__init__(config, **kwargs)
        hidden_size = self.config.hidden_size
        self.query = self.make_dense(hidden_size, "query")
        self.key = self.make_dense(hidden_size, "key")
        self.value = self.make_dense(hidden_size, "value")
        self.dropout = self.make_dropout(
            self.config.attention_probs_dropout_prob
        )

    def build(self, input_shape=None):
        for projection in (self.query, self.key, self.value):
            projection.build((None, None, self.config.hidden_size))

    def _heads(self, x):
        """Splits the last axis into heads: [B, S, H] -> [B, N, S, D]."""
        heads = self.config.num_attention_heads
        batch, length, width = ops.shape(x)
        x = ops.reshape(x, (batch, length, heads, width // heads))
        return ops.transpose(x, (0, 2, 1, 3))

    def call(self, x, attention_bias, training=False, seed=None):
        """Lets every position look at every other.

        Args:
          x: Floats [B, S, H].
          attention_bias: Floats, added to the scores; any shape that
            broadcasts to [B, N, S, S].
          training: Whether dropout is on.
          seed: Integer tensor [2] or None, see `Dropout`.

        Returns:
          Context, floats [B, S, H], and the attention probabilities before
          dropout, floats [B, N, S, S].
        """
        query = self._heads(self.query(x))  # [B, N, S, D]
        key = self._heads(self.key(x))  # [B, N, S, D]
        value = self._heads(self.value(x))  # [B, N, S, D]
        query = query * (1.0 / math.sqrt(query.shape[-1]))
        scores = ops.matmul(query, ops.transpose(key, (0, 1, 3, 2)))
        # Keras hands the bias over in the compute dtype.
        scores = ops.cast(scores, "float32") + ops.cast(
            attention_bias, "float32"
        )  # [B, N, S, S]
        probabilities = ops.cast(ops.softmax(scores), self.compute_dtype)
        kept = self.dropout(probabilities, training=training, seed=seed)
        context = ops.transpose(ops.matmul(kept, value), (0, 2, 1, 3))
        return ops.reshape(context, ops.shape(x)), probabilities  # [B, S, H]


@keras.saving.register_keras_serializable("bert_tf")
class ResidualOutput(BertLayer):
    """Dense, dropout, then the layer norm of the sum with the input.

    Ends both halves of a Transformer block (`attention/output` and `output`).
    """

    def __init__(self, config, **kwargs):
        super().__init__(config, **kwargs)
        self.dense = self.make_dense(self.config.hidden_size)
        self.dropout = self.make_dropout(self.config.hidden_dropout_prob)
        self.layer_norm = self.make_layer_norm()

    def build(self, input_shape):
        self.dense.build(input_shape)
        self.layer_norm.build((None, None, self.config.hidden_size))

    def call(self, x, residual, training=False, seed=None):
        """Maps floats [B, S, I or H] and a residual [B, S, H] to [B, S, H]."""
        x = self.dropout(self.dense(x), training=training, seed=seed)
        return self.layer_norm(x + residual)


@keras.saving.register_keras_serializable("bert_tf")
class Attention(BertLayer):
    """Self-attention with its residual output: the scope `attention`."""

    def __init__(self, config, **kwargs):
        super().__init__(config, **kwargs)
        self.self_attention = self.make_part(SelfAttention, "self")
        self.residual = self.make_part(ResidualOutput, "output")

    def build(self, input_shape=None):
        shape = (None, None, self.config.hidden_size)
        self.self_attention.build(shape)
        self.residual.build(shape)

    def call(self, x, attention_bias, training=False, seed=None):
        """Maps floats [B, S, H] to [B, S, H] and probabilities."""
        context, probabilities = self.self_attention(
            x, attention_bias, training=training, seed=seed
        )
        x = self.residual(context, x, training=training, seed=fold_in(seed, 1))
        return x, probabilities


@keras.saving.register_keras_serializable("bert_tf")
class Intermediate(BertLayer):
    """The wide half of the feed-forward network: the scope `intermediate`."""

    def __init__(self, config, **kwargs):
        super().__init__(config, **kwargs)
        self.dense = self.make_dense(self.config.intermediate_size)

    def build(self, input_shape=None):
        self.dense.build((None, None, self.config.hidden_size))

    def call(self, x):
        """Maps floats [B, S, H] to [B, S, I]."""
        return ACTIVATIONS[self.config.hidden_act](self.dense(x))


@keras.saving.register_keras_serializable("bert_tf")
class TransformerBlock(BertLayer):
    """Attention, then feed-forward, each followed by its layer norm.

    Source: one turn of the loop in `transformer_model`.
    """

    # Places where a block draws a dropout mask: attention probabilities,
    # attention output, feed-forward output.
    SEED_SITES = 3

    def __init__(self, config, **kwargs):
        super().__init__(config, **kwargs)
        self.attention = self.make_part(Attention, "attention")
        self.intermediate = self.make_part(Intermediate, "intermediate")
        self.residual = self.make_part(ResidualOutput, "output")

    def build(self, input_shape=None):
        self.attention.build()
        self.intermediate.build()
        self.residual.build((None, None, self.config.intermediate_size))

    def call(self, x, attention_bias, training=False, seed=None):
        """Applies the block.

        Args:
          x: Floats [B, S, H].
          attention_bias: Floats that broadcast to [B, N, S, S].
          training: Whether dropout is on.
          seed: Integer tensor [2] or None, see `Dropout`.

        Returns:
          Floats [B, S, H], and the attention probabilities [B, N, S, S].
        """
        x, probabilities = self.attention(
            x, attention_bias, training=training, seed=seed
        )
        x = self.residual(
            self.intermediate(x), x, training=training, seed=fold_in(seed, 2)
        )
        return x, probabilities


@keras.saving.register_keras_serializable("bert_tf")
class Encoder(BertLayer):
    """The stack of Transformer blocks; source: `transformer_model`."""

    def __init__(self, config, **kwargs):
        super().__init__(config, **kwargs)
        self.blocks = [
            self.make_part(TransformerBlock, f"layer_{index}")
            for index in range(self.config.num_hidden_layers)
        ]

    def build(self, input_shape=None):
        for block in self.blocks:
            block.build()

    def call(self, x, attention_bias, training=False, seed=None):
        """Applies every block.

        Args:
          x: Floats [B, S, H].
          attention_bias: Floats that broadcast to [B, N, S, S].
          training: Whether dropout is on.
          seed: Integer tensor [2] or None, see `Dropout`.

        Returns:
          The outputs of all blocks, a list of floats [B, S, H], and their
          attention probabilities, a list of floats [B, N, S, S].
        """
        outputs, attentions = [], []
        for index, block in enumerate(self.blocks):
            x, probabilities = block(
                x,
                attention_bias,
                training=training,
                seed=fold_in(seed, index * block.SEED_SITES),
            )
            outputs.append(x)
            attentions.append(probabilities)
        return outputs, attentions


@keras.saving.register_keras_serializable("bert_tf")
class Pooler(BertLayer):
    """tanh(dense(first position)): the vector for the whole input."""

    def __init__(self, config, **kwargs):
        super().__init__(config, **kwargs)
        self.dense = self.make_dense(self.config.hidden_size)

    def build(self, input_shape=None):
        self.dense.build((None, self.config.hidden_size))

    def call(self, sequence_output):
        """Maps floats [B, S, H] to [B, H]."""
        return ops.tanh(self.dense(sequence_output[:, 0]))


@keras.saving.register_keras_serializable("bert_tf")
class BertModel(TakesFeatures, FromConfig, keras.Model):
    """The BERT encoder: token ids in, vectors out.

    Example:

        model = BertModel(BertConfig.from_name("tiny", vocab_size=30522))
        outputs = model({"input_ids": np.array([[101, 7592, 102]])})
        outputs["sequence_output"]  # [1, 3, 128]
        outputs["pooled_output"]  # [1, 128]

    Args:
      config: A `BertConfig`, or the dict that its `to_dict` gave.
      output_hidden_states: Also return `hidden_states`, the embeddings and
        every block's output: a list of num_hidden_layers + 1 floats [B, S, H].
      output_attentions: Also return `attentions`, every block's attention
        probabilities: a list of num_hidden_layers floats [B, N, S, S].
    """

    def __init__(
        self,
        config: BertConfig | dict,
        output_hidden_states: bool = False,
        output_attentions: bool = False,
        name: str = "bert",
        **kwargs,
    ):
        super().__init__(config, name=name, **kwargs)
        self.output_hidden_states = output_hidden_states
        self.output_attentions = output_attentions
        self.embeddings = self.make_part(Embeddings, "embeddings")
        self.encoder = self.make_part(Encoder, "encoder")
        self.pooler = self.make_part(Pooler, "pooler")

    def build(self, input_shape=None):
        for part in (self.embeddings, self.encoder, self.pooler):
            part.build()

    def call(self, inputs, training=False, seed=None):
        """Encodes a batch.

        Args:
          inputs: Dict of integers [B, S]: `input_ids`, and, unless they are
            all ones and all zeros, `input_mask` (1 for tokens, 0 for padding)
            and `segment_ids` (0 for the first text, 1 for the second). Other
            entries are ignored.
          training: Whether dropout is on.
          seed: Integer tensor [2] that decides every dropout mask, or None
            for the layers' own generators.

        Returns:
          Dict of `sequence_output` [B, S, H] and `pooled_output` [B, H], and
          what the constructor asked for.

        Raises:
          ValueError: The sequence is longer than `max_position_embeddings`.
        """
        input_ids = ops.convert_to_tensor(inputs["input_ids"], "int32")
        self._check_length(input_ids.shape[1])
        embedded = self.embeddings(
            input_ids,
            inputs.get("segment_ids", ops.zeros_like(input_ids)),
            training=training,
            seed=seed,
        )  # [B, S, H]
        outputs, attentions = self.encoder(
            embedded,
            attention_bias(inputs.get("input_mask", ops.ones_like(input_ids))),
            training=training,
            seed=fold_in(seed, 1),
        )
        result = {
            "sequence_output": outputs[-1],
            "pooled_output": self.pooler(outputs[-1]),
        }
        if self.output_hidden_states:
            result["hidden_states"] = [embedded, *outputs]
        if self.output_attentions:
            result["attentions"] = attentions
        return result

    def _check_length(self, length: int | None) -> None:
        limit = self.config.max_position_embeddings
        if length is not None and length > limit:
            raise ValueError(
                f"expected at most {limit} positions, the config's "
                f"max_position_embeddings. Received: a sequence of {length}"
            )

    def get_config(self):
        return {
            **super().get_config(),
            "output_hidden_states": self.output_hidden_states,
            "output_attentions": self.output_attentions,
        }


def attention_bias(input_mask):
    """Turns a mask of ones and zeros [B, S] into a bias [B, 1, 1, S].

    It hides keys; a padding position still looks at the others, as in
    `create_attention_mask_from_input_mask`.
    """
    bias = (1.0 - ops.cast(input_mask, "float32")) * MASKED_SCORE
    return ops.expand_dims(bias, (1, 2))  # [B, 1, 1, S]


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
      InputError: There are several encoders.
    """
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


# Where the path of every encoder's first variable ends.
_TABLE = "/embeddings/word_embeddings"


def _checkpoint_name(path: str, encoder: str | None, outer: str) -> str:
    if encoder is not None and path.startswith(f"{encoder}/"):
        return f"bert/{path[len(encoder) + 1 :]}"
    return path.removeprefix(outer)
