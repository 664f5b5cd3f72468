"""The Transformer: blocks of self-attention and a feed-forward network.

Source: Devlin et al. 2018, section 3; Vaswani et al. 2017, section 3; and
google-research/bert `modeling.py`. The legend of shapes is at the top of
`modeling.py`.

Layers compute in the compute dtype of their policy. The softmax and the layer
normalization always run in float32.
"""

import math

import keras
from keras import ops

from bert_tf import fusion
from bert_tf.config import BertConfig
from bert_tf.layers import (
    ACTIVATIONS,
    BertLayer,
    draw_seed,
    fold_in,
    recomputed,
)

# Added to the attention scores of padding. Finite, as in the original: a row
# that is all padding then attends evenly instead of giving NaN.
MASKED_SCORE = -10000.0


@keras.saving.register_keras_serializable("bert_tf")
class SelfAttention(BertLayer):
    """Multi-head scaled dot-product attention; source: `attention_layer`."""

    def __init__(self, config, **kwargs):
        super().__init__(config, **kwargs)
        self.config.check_heads()
        hidden_size = self.config.hidden_size
        self.query = self.make_dense(hidden_size, "query")
        self.key = self.make_dense(hidden_size, "key")
        self.value = self.make_dense(hidden_size, "value")
        self.dropout = self.make_dropout(
            self.config.attention_probs_dropout_prob
        )

    def build(self, x_shape=None, attention_bias_shape=None):
        for projection in (self.query, self.key, self.value):
            projection.build((None, None, self.config.hidden_size))

    def compute_output_shape(self, x_shape, attention_bias_shape=None):
        return x_shape, attention_shape(self.config, x_shape)

    def _heads(self, x):
        """Splits the last axis into heads: [B, S, H] -> [B, N, S, D]."""
        heads = self.config.num_attention_heads
        batch, length, width = ops.shape(x)
        x = ops.reshape(x, (batch, length, heads, width // heads))
        return ops.transpose(x, (0, 2, 1, 3))

    def call(
        self,
        x,
        attention_bias,
        training=False,
        seed=None,
        num_queries: int | None = None,
    ):
        """Lets positions look at every other.

        Args:
          x: Floats [B, S, H].
          attention_bias: Floats, added to the scores; any shape that
            broadcasts to [B, N, Q, S].
          training: Whether dropout is on.
          seed: Integer tensor [2] or None, see `Dropout`.
          num_queries: Q, how many of the first positions look; None for all.

        Returns:
          Context, floats [B, Q, H], and the attention probabilities before
          dropout, floats [B, N, Q, S].
        """
        queries = first_positions(x, num_queries)
        query = self._heads(self.query(queries))  # [B, N, Q, D]
        key = self._heads(self.key(x))  # [B, N, S, D]
        value = self._heads(self.value(x))  # [B, N, S, D]
        query = query * (1.0 / math.sqrt(query.shape[-1]))
        scores = ops.matmul(query, ops.transpose(key, (0, 1, 3, 2)))
        # Keras hands the bias over in the compute dtype.
        biased = ops.cast(scores, "float32") + ops.cast(
            attention_bias, "float32"
        )  # [B, N, Q, S]
        probabilities = ops.cast(ops.softmax(biased), self.compute_dtype)
        # A pass makes its own; a graph leaves out those that nobody takes.
        if passes := _passes_for(scores, training, seed):
            kept = passes.attention_probabilities(
                scores, attention_bias, seed, self.dropout.rate
            )
        else:
            kept = self.dropout(probabilities, training=training, seed=seed)
        context = ops.transpose(ops.matmul(kept, value), (0, 2, 1, 3))
        context = ops.reshape(context, ops.shape(queries))  # [B, Q, H]
        return context, probabilities


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

    def build(self, x_shape, residual_shape=None):
        self.dense.build(x_shape)
        self.layer_norm.build((None, None, self.config.hidden_size))

    def compute_output_shape(self, x_shape, residual_shape=None):
        return (*x_shape[:-1], self.config.hidden_size)

    def call(self, x, residual, training=False, seed=None):
        """Maps floats [B, S, I or H] and a residual [B, S, H] to [B, S, H]."""
        x = self.dense(x)
        if passes := _passes_for(x, training, seed):
            norm = self.layer_norm
            return passes.normalized_sum(
                *(x, residual, norm.gamma, norm.beta, seed),
                self.dropout.rate,
                norm.epsilon,
            )
        x = self.dropout(x, training=training, seed=seed)
        return self.layer_norm(x + residual)


@keras.saving.register_keras_serializable("bert_tf")
class Attention(BertLayer):
    """Self-attention with its residual output: the scope `attention`."""

    def __init__(self, config, **kwargs):
        super().__init__(config, **kwargs)
        self.self_attention = self.make_part(SelfAttention, "self")
        self.residual = self.make_part(ResidualOutput, "output")

    def build(self, x_shape=None, attention_bias_shape=None):
        shape = (None, None, self.config.hidden_size)
        self.self_attention.build(shape)
        self.residual.build(shape)

    def compute_output_shape(self, x_shape, attention_bias_shape=None):
        return self.self_attention.compute_output_shape(x_shape)

    def call(
        self,
        x,
        attention_bias,
        training=False,
        seed=None,
        num_queries: int | None = None,
    ):
        """Maps floats [B, S, H] to [B, Q, H] and probabilities."""
        context, probabilities = self.self_attention(
            x,
            attention_bias,
            training=training,
            seed=seed,
            num_queries=num_queries,
        )
        x = self.residual(
            context,
            first_positions(x, num_queries),
            training=training,
            seed=fold_in(seed, 1),
        )
        return x, probabilities


@keras.saving.register_keras_serializable("bert_tf")
class Intermediate(BertLayer):
    """The wide half of the feed-forward network: the scope `intermediate`."""

    def __init__(self, config, **kwargs):
        super().__init__(config, **kwargs)
        self.dense = self.make_dense(self.config.intermediate_size)

    def build(self, input_shape=None):
        self.dense.build((None, None, self.config.hidden_size))

    def compute_output_shape(self, input_shape):
        return (*input_shape[:-1], self.config.intermediate_size)

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

    def build(self, x_shape=None, attention_bias_shape=None):
        self.attention.build()
        self.intermediate.build()
        self.residual.build((None, None, self.config.intermediate_size))

    def compute_output_shape(self, x_shape, attention_bias_shape=None):
        return self.attention.compute_output_shape(x_shape)

    def call(
        self,
        x,
        attention_bias,
        training=False,
        seed=None,
        num_queries: int | None = None,
    ):
        """Applies the block.

        Args:
          x: Floats [B, S, H].
          attention_bias: Floats that broadcast to [B, N, Q, S].
          training: Whether dropout is on.
          seed: Integer tensor [2] or None, see `Dropout`.
          num_queries: Q, how many of the first positions are given out; None
            for all. The others are looked at all the same.

        Returns:
          Floats [B, Q, H], and the attention probabilities [B, N, Q, S].
        """
        x, probabilities = self.attention(
            x,
            attention_bias,
            training=training,
            seed=seed,
            num_queries=num_queries,
        )
        x = self.residual(
            self.intermediate(x), x, training=training, seed=fold_in(seed, 2)
        )
        return x, probabilities


@keras.saving.register_keras_serializable("bert_tf")
class Encoder(BertLayer):
    """The stack of Transformer blocks; source: `transformer_model`.

    Args:
      config: A `BertConfig`, or the dict that its `to_dict` gave.
      output_attentions: Also return the attention probabilities.
      gradient_checkpointing: Forget what is inside a block when training and
        compute it a second time in the backward pass (Chen et al. 2016).
        Memory for activations then grows with the blocks' outputs alone; a
        step takes about a third longer. Gradients are the same.
    """

    def __init__(
        self,
        config,
        output_attentions: bool = False,
        gradient_checkpointing: bool = False,
        **kwargs,
    ):
        super().__init__(config, **kwargs)
        self.output_attentions = output_attentions
        self.gradient_checkpointing = gradient_checkpointing
        self.seed_generator = keras.random.SeedGenerator()
        self.blocks = [
            self.make_part(TransformerBlock, f"layer_{index}")
            for index in range(self.config.num_hidden_layers)
        ]

    def build(self, x_shape=None, attention_bias_shape=None):
        for block in self.blocks:
            block.build()

    def compute_output_shape(self, x_shape, attention_bias_shape=None):
        shapes = [b.compute_output_shape(x_shape) for b in self.blocks]
        outputs, attentions = map(list, zip(*shapes, strict=True))
        return outputs, attentions if self.output_attentions else []

    def call(
        self,
        x,
        attention_bias,
        training=False,
        seed=None,
        num_queries: int | None = None,
    ):
        """Applies every block.

        Args:
          x: Floats [B, S, H].
          attention_bias: Floats, what the function of this name gives.
          training: Whether dropout is on.
          seed: Integer tensor [2], or None: then one is drawn here. Blocks
            draw none, so that what is computed again drops the same values.
          num_queries: See `TransformerBlock`, for the last one alone.

        Returns:
          The outputs of all blocks, a list of floats [B, S, H], and their
          attention probabilities, a list of floats [B, N, S, S], which is
          empty unless the constructor asked for them.
        """
        if training and seed is None:
            seed = draw_seed(self.seed_generator)
        outputs, attentions = [], []
        for index, block in enumerate(self.blocks):
            arguments = {
                "training": training,
                "seed": fold_in(seed, index * block.SEED_SITES),
                "num_queries": (
                    num_queries if block is self.blocks[-1] else None
                ),
            }
            apply = self._as_function(block, **arguments)
            x, *probabilities = apply(
                x, _of_queries(attention_bias, arguments["num_queries"])
            )
            outputs.append(x)
            attentions += probabilities
        return outputs, attentions

    def _as_function(self, block, **arguments):
        """The block as a function of tensors, whatever else is settled."""

        def apply(x, attention_bias):
            x, probabilities = block(x, attention_bias, **arguments)
            return (x, probabilities) if self.output_attentions else (x,)

        if self.gradient_checkpointing and arguments["training"]:
            return recomputed(apply)
        return apply

    def get_config(self):
        return {
            **super().get_config(),
            "output_attentions": self.output_attentions,
            "gradient_checkpointing": self.gradient_checkpointing,
        }


def _passes_for(x, training, seed):
    """`fusion.passes_for`, where dropout masks follow from a given seed."""
    return fusion.passes_for(x) if training and seed is not None else None


def attention_shape(config: BertConfig, input_shape) -> tuple:
    """The shape [B, N, S, S] of the probabilities over [B, S, H]."""
    batch, length, _ = input_shape
    return batch, config.num_attention_heads, length, length


def first_positions(x, number: int | None):
    """The first positions of floats [B, S, H]; all of them for None."""
    return x if number is None else x[:, :number]


def attention_bias(input_mask, example_ids=None, left_to_right: bool = False):
    """Turns a mask into what is added to attention scores.

    It hides keys; a padding position still looks at the others, as in
    `create_attention_mask_from_input_mask`.

    Args:
      input_mask: Ones for tokens and zeros for padding, [B, S].
      example_ids: Integers [B, S], or None: keys with another number than the
        query's are hidden too, so that examples in a row do not meet.
      left_to_right: Whether keys behind the query are hidden as well.

    Returns:
      float32 [B, 1, 1, S], or [B, 1, S, S] with `example_ids` or from left to
      right.
    """
    is_seen = ops.cast(input_mask, "float32")[:, None]  # [B, 1, S]
    if example_ids is not None:
        is_same = ops.equal(example_ids[:, :, None], example_ids[:, None])
        is_seen = is_seen * ops.cast(is_same, "float32")  # [B, S, S]
    if left_to_right:
        places = ops.arange(ops.shape(input_mask)[1], dtype="int32")
        is_before = ops.greater_equal(places[:, None], places)
        is_seen = is_seen * ops.cast(is_before, "float32")  # [B, S, S]
    return ops.expand_dims((1.0 - is_seen) * MASKED_SCORE, 1)


def _of_queries(attention_bias, number: int | None):
    """The bias [B, 1, 1 or S, S] of the first queries; of all for None."""
    return attention_bias if number is None else attention_bias[:, :, :number]


def last_positions(input_mask, example_ids=None, cls_positions=None):
    """Where each example ends, which is what has seen all of it.

    Args:
      input_mask: Ones for tokens and zeros for padding, [B, S].
      example_ids: Integers [B, S], or None where all tokens belong together.
      cls_positions: Integers [B, K], the first token of each example; None for
        one that begins with the row.

    Returns:
      The places of the last tokens, int32 [B, K] or [B, 1]; 0 for none.
    """
    mask = ops.cast(input_mask, "int32")
    if example_ids is None:
        example_ids = ops.zeros_like(mask)
    if cls_positions is None:
        cls_positions = ops.zeros_like(mask[:, :1])
    numbers = ops.take_along_axis(example_ids, cls_positions, axis=1)
    is_own = ops.equal(numbers[..., None], example_ids[:, None])  # [B, K, S]
    places = ops.arange(ops.shape(mask)[1], dtype="int32") * mask  # [B, S]
    return ops.max(ops.cast(is_own, "int32") * places[:, None], axis=-1)
