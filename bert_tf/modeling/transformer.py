"""The layers of BERT: embeddings, Transformer blocks and pooler.

Source: Devlin et al. 2018, section 3; Vaswani et al. 2017, section 3; and
google-research/bert `modeling.py`. The shape letters are explained at the top
of `encoder.py`, where the layers become a model.

Layers compute in the compute dtype of their policy; softmax and layer
normalization always use float32.

The encoder's blocks take their dropout masks from seeds, so that recomputation
(gradient checkpointing) reproduces them. In training, the encoder draws a seed
if it gets none, and derives one for each block. Embeddings and heads without a
seed use Keras's generator.
"""

import functools
import math

import keras
from keras import ops

from bert_tf.config import BertConfig, as_config, require_share
from bert_tf.modeling import kernels
from bert_tf.modeling.dense import Dense

ACTIVATIONS = {
    "gelu_tanh": functools.partial(kernels.gelu, approximate=True),
    "gelu_erf": functools.partial(kernels.gelu, approximate=False),
    "relu": keras.activations.relu,
    "tanh": keras.activations.tanh,
    "linear": keras.activations.linear,
}

# The dense layers of a block that can have LoRA adapters, and those that have
# them by default.
LORA_LAYERS = {
    "query": "attention/self/query",
    "key": "attention/self/key",
    "value": "attention/self/value",
    "attention_output": "attention/output/dense",
    "intermediate": "intermediate/dense",
    "output": "output/dense",
}
LORA_TARGETS = ("query", "value")

# Added to the attention scores of padding. Finite, as in the original: a row
# that consists of padding then attends evenly, where -inf would give NaN.
MASKED_SCORE = -10000.0


def fold_in(seed, site: int):
    """Derives the seed of one dropout site; None if `seed` is None."""
    if seed is None:
        return None
    return seed + ops.convert_to_tensor([0, site], dtype=seed.dtype)


@keras.saving.register_keras_serializable("bert_tf")
class Dropout(keras.layers.Dropout):
    """Keras's dropout, with an optional seed as an argument."""

    def __init__(self, rate, *args, **kwargs):
        require_share("dropout", rate)
        super().__init__(rate, *args, **kwargs)

    def call(self, inputs, training=False, seed=None):
        """Drops values, if `training` is set.

        `seed` is an integer tensor [2], or None for the layer's own generator.
        """
        if not training or seed is None:
            return super().call(inputs, training=training)
        return kernels.dropout(inputs, self.rate, seed)


class BertLayer(keras.layers.Layer):
    """A layer with a `BertConfig`; its inner layers share its dtype policy."""

    def __init__(self, config: BertConfig | dict, **kwargs):
        super().__init__(**kwargs)
        self.config = as_config(config)

    def build(self, x_shape=None, **_):
        """Builds the inner layers, in the order in which they were made.

        Keras passes the shape of each argument of `call` by its name.
        """
        vectors = (None, None, self.config.hidden_size)
        for layer in self._flatten_layers(include_self=False, recursive=False):
            layer.build(vectors)

    def get_config(self):
        return {**super().get_config(), "config": self.config.to_dict()}

    def make_inner(self, layer: type["BertLayer"], name: str) -> "BertLayer":
        """Returns an inner layer with the same config and policy."""
        return layer(self.config, name=name, dtype=self.dtype_policy)

    def make_dense(self, units: int, name: str = "dense") -> Dense:
        """Returns a dense layer with the original's initialization."""
        return Dense(
            units,
            kernel_initializer=self.make_initializer(),
            name=name,
            dtype=self.dtype_policy,
        )

    def make_initializer(self) -> keras.Initializer:
        """Returns the original's initializer, a new one for each weight.

        A Keras initializer draws the same values on each use, so query, key
        and value must not share one.
        """
        return keras.initializers.TruncatedNormal(
            stddev=self.config.initializer_range
        )

    def make_layer_norm(self) -> keras.layers.LayerNormalization:
        """Returns a layer normalization with the original's epsilon."""
        return keras.layers.LayerNormalization(
            epsilon=1e-12, name="LayerNorm", dtype=self.dtype_policy
        )

    def make_dropout(self, rate: float) -> Dropout:
        """Returns a dropout layer.

        Blocks use only its rate. But making the layer advances the global seed,
        on which the initial values of later weights depend.
        """
        return Dropout(rate, dtype=self.dtype_policy)


@keras.saving.register_keras_serializable("bert_tf")
class Embeddings(BertLayer):
    """Sum of word, position and token type embeddings, normalized.

    Source: `embedding_lookup` and `embedding_postprocessor`.
    """

    def __init__(self, config, **kwargs):
        super().__init__(config, **kwargs)
        self.layer_norm = self.make_layer_norm()
        self.dropout = self.make_dropout(self.config.hidden_dropout_prob)
        self.starts_as_zeros = False

    def build(self, input_ids_shape=None, **_):
        self.word_embeddings = self._table("word", self.config.vocab_size)
        self.token_type_embeddings = self._table(
            "token_type", self.config.type_vocab_size
        )
        self.position_embeddings = self._table(
            "position", self.config.max_position_embeddings
        )
        super().build()

    def compute_output_shape(self, input_ids_shape):
        return (*input_ids_shape, self.config.hidden_size)

    def _table(self, name: str, rows: int):
        # Made even if unused: it draws a seed, and the heads draw after it.
        initializer = self.make_initializer()
        if self.starts_as_zeros:
            initializer = keras.initializers.Zeros()
        return self.add_weight(
            name=f"{name}_embeddings",
            shape=(rows, self.config.hidden_size),
            initializer=initializer,
            # Casts the rows that are looked up, not the whole table.
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
        """Maps integers [B, S] to floats [B, S, H].

        Without `position_ids`, positions are 0 to S - 1 in every row. For
        `training` and `seed` see `Dropout`.
        """
        if position_ids is None:
            positions = self.position_embeddings[: ops.shape(input_ids)[1]]
        else:
            positions = ops.take(self.position_embeddings, position_ids, axis=0)
        # A product with a one-hot matrix, as in the original: the table has two
        # rows, and this avoids a scatter in its gradient.
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
class SelfAttention(BertLayer):
    """Multi-head scaled dot-product attention; source: `attention_layer`."""

    def __init__(self, config, **kwargs):
        super().__init__(config, **kwargs)
        self.config.check_heads()
        self.query = self.make_dense(self.config.hidden_size, "query")
        self.key = self.make_dense(self.config.hidden_size, "key")
        self.value = self.make_dense(self.config.hidden_size, "value")
        self.dropout = self.make_dropout(
            self.config.attention_probs_dropout_prob
        )

    def call(self, x, attention_bias, seed=None, num_queries=None):
        """Computes self-attention.

        Args:
          x: Floats [B, S, H].
          attention_bias: Floats that broadcast to [B, N, Q, S], added to the
            scores.
          seed: Integer tensor [2], or None for no dropout.
          num_queries: Q: computes only the first Q positions, which attend to
            all S; None for all.

        Returns:
          Context, floats [B, Q, H], and the attention probabilities before
          dropout, floats [B, N, Q, S].
        """
        queries = _first_positions(x, num_queries)
        query, key, value = (
            self._split_heads(layer(inputs), inputs)
            for layer, inputs in (
                (self.query, queries),
                (self.key, x),
                (self.value, x),
            )
        )
        query = query * (1.0 / math.sqrt(query.shape[-1]))
        scores = ops.matmul(query, ops.transpose(key, (0, 1, 3, 2)))
        context, probabilities = kernels.attend(
            scores, attention_bias, value, self.dropout.rate, seed
        )
        return self._join_heads(context, queries), probabilities

    def _split_heads(self, x, inputs):
        """Maps floats [B, S, N D] to [B, N, S, D].

        B and S are taken from `inputs`, [B, S, H], so that the graph computes
        them once.
        """
        size = self.config.hidden_size // self.config.num_attention_heads
        batch, length, _ = ops.shape(inputs)
        x = ops.reshape(x, (batch, length, x.shape[-1] // size, size))
        return ops.transpose(x, (0, 2, 1, 3))

    def _join_heads(self, x, inputs):
        """Maps floats [B, N, S, D] to [B, S, N D]; see `_split_heads`."""
        batch, length, _ = ops.shape(inputs)
        _, heads, _, size = x.shape
        x = ops.transpose(x, (0, 2, 1, 3))
        return ops.reshape(x, (batch, length, heads * size))


@keras.saving.register_keras_serializable("bert_tf")
class ResidualOutput(BertLayer):
    """Dense layer, dropout, then layer normalization of the residual sum.

    Ends both halves of a Transformer block (`attention/output` and `output`).
    """

    def __init__(self, config, **kwargs):
        super().__init__(config, **kwargs)
        self.dense = self.make_dense(self.config.hidden_size)
        self.dropout = self.make_dropout(self.config.hidden_dropout_prob)
        self.layer_norm = self.make_layer_norm()

    def build(self, x_shape, **_):
        self.dense.build(x_shape)
        self.layer_norm.build((None, None, self.config.hidden_size))

    def call(self, x, residual, seed=None):
        """Maps floats [B, S, I or H] and a residual [B, S, H] to [B, S, H]."""
        return kernels.residual_layer_norm(
            self.dense(x),
            residual,
            self.layer_norm,
            self.dropout.rate,
            seed,
        )


@keras.saving.register_keras_serializable("bert_tf")
class Attention(BertLayer):
    """Self-attention with its residual output: the scope `attention`."""

    def __init__(self, config, **kwargs):
        super().__init__(config, **kwargs)
        self.self_attention = self.make_inner(SelfAttention, "self")
        self.residual = self.make_inner(ResidualOutput, "output")

    def call(self, x, attention_bias, seed=None, num_queries=None):
        """Maps floats [B, S, H] to [B, Q, H] and attention probabilities."""
        context, probabilities = self.self_attention(
            x, attention_bias, seed=seed, num_queries=num_queries
        )
        queries = _first_positions(x, num_queries)
        x = self.residual(context, queries, seed=fold_in(seed, 1))
        return x, probabilities


@keras.saving.register_keras_serializable("bert_tf")
class Intermediate(BertLayer):
    """The wide half of the feed-forward network: the scope `intermediate`."""

    def __init__(self, config, **kwargs):
        super().__init__(config, **kwargs)
        self.dense = self.make_dense(self.config.intermediate_size)

    def call(self, x):
        """Maps floats [B, S, H] to [B, S, I]."""
        return self.dense.activated(x, ACTIVATIONS[self.config.hidden_act])


@keras.saving.register_keras_serializable("bert_tf")
class TransformerBlock(BertLayer):
    """Attention, then feed-forward, each with a residual and a layer norm.

    Source: one iteration of the loop in `transformer_model`.
    """

    # Dropout sites: attention probabilities, attention output, feed-forward
    # output. These are offsets in a block; in the encoder, layer_2 has sites 6,
    # 7 and 8.
    SEED_SITES = 3

    def __init__(self, config, **kwargs):
        super().__init__(config, **kwargs)
        self.attention = self.make_inner(Attention, "attention")
        self.intermediate = self.make_inner(Intermediate, "intermediate")
        self.residual = self.make_inner(ResidualOutput, "output")

    def build(self, x_shape=None, **_):
        self.attention.build()
        self.intermediate.build()
        self.residual.build((None, None, self.config.intermediate_size))

    def call(self, x, attention_bias, seed=None, num_queries=None):
        """Maps floats [B, S, H] to [B, Q, H] and attention probabilities.

        Takes the arguments of `SelfAttention`.
        """
        x, probabilities = self.attention(
            x, attention_bias, seed=seed, num_queries=num_queries
        )
        x = self.residual(self.intermediate(x), x, seed=fold_in(seed, 2))
        return x, probabilities


@keras.saving.register_keras_serializable("bert_tf")
class Encoder(BertLayer):
    """The stack of Transformer blocks; source: `transformer_model`.

    Args:
      output_attentions: Whether to return the attention probabilities.
      gradient_checkpointing: Whether training keeps only the outputs of the
        blocks and recomputes the rest for the gradients (Chen et al. 2016),
        which saves memory for activations. A step takes about a third longer;
        gradients are the same.
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
            self.make_inner(TransformerBlock, f"layer_{index}")
            for index in range(self.config.num_hidden_layers)
        ]

    def compute_output_shape(self, x_shape):
        batch, length, _ = x_shape
        heads = self.config.num_attention_heads
        outputs = [x_shape for _ in self.blocks]
        if not self.output_attentions:
            return outputs, []
        return outputs, [(batch, heads, length, length) for _ in self.blocks]

    def call(
        self, x, attention_bias, training=False, seed=None, num_queries=None
    ):
        """Applies every block.

        Args:
          x: Floats [B, S, H].
          attention_bias: Floats, the result of `attention_bias`.
          training: Whether dropout is on.
          seed: Integer tensor [2], or None to draw one.
          num_queries: See `SelfAttention`; for the last block only.

        Returns:
          The outputs of all blocks, a list of floats [B, S, H], and their
          attention probabilities, a list of floats [B, N, S, S], which is
          empty without `output_attentions`. For the last block, Q replaces
          the first S.
        """
        if not training:
            seed = None
        elif seed is None:
            # The generator's state is a counter. If it were the seed, `fold_in`
            # could return the seeds of the next call.
            seed = keras.random.randint(
                (2,), 0, 2**31 - 1, seed=self.seed_generator
            )
        outputs, attentions = [], []
        for index, block in enumerate(self.blocks):
            is_last = block is self.blocks[-1]
            apply = self._as_function(
                block,
                seed=fold_in(seed, index * block.SEED_SITES),
                num_queries=num_queries if is_last else None,
            )
            if training and self.gradient_checkpointing:
                apply = _recomputed(apply)
            x, *probabilities = apply(x, attention_bias)
            outputs.append(x)
            attentions += probabilities
        return outputs, attentions

    def _as_function(self, block: TransformerBlock, seed, num_queries):
        """Returns the block as a function of tensors only."""

        def apply(x, bias):
            if num_queries is not None:
                bias = bias[:, :, :num_queries]  # [B, 1, 1 or Q, S]
            x, probabilities = block(
                x, bias, seed=seed, num_queries=num_queries
            )
            return (x, probabilities) if self.output_attentions else (x,)

        return apply

    def get_config(self):
        return {
            **super().get_config(),
            "output_attentions": self.output_attentions,
            "gradient_checkpointing": self.gradient_checkpointing,
        }


def _first_positions(x, number: int | None):
    """Returns the first positions of floats [B, S, H], or all for None."""
    return x if number is None else x[:, :number]


def _recomputed(function):
    """Returns a function of tensors that the backward pass computes again."""
    result = keras.remat(function)
    if keras.config.backend() == "torch":
        # PyTorch stops recomputing by an exception, whose traceback through
        # Keras's layers keeps their tensors in memory.
        return functools.partial(result, early_stop=False)
    return result


@keras.saving.register_keras_serializable("bert_tf")
class Pooler(BertLayer):
    """tanh(dense(vector of one token)): the vector of the whole input.

    The token is [CLS], or the last one in a left-to-right model.
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
          positions: Integers [B, K], the position of the token in each example;
            None for the first token of each row.

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


def attention_bias(input_mask, example_ids=None, left_to_right: bool = False):
    """Turns a mask into a bias to add to attention scores.

    The bias hides keys; padding positions still attend to tokens, as in
    `create_attention_mask_from_input_mask`. A row of two tokens and one of
    padding gives [0, 0, -10000].

    Args:
      input_mask: Ones for tokens and zeros for padding, [B, S].
      example_ids: Integers [B, S], or None. Positions attend only to positions
        with the same number, which keeps examples in one row apart.
      left_to_right: Whether to hide the keys after the query.

    Returns:
      float32 [B, 1, 1, S], or [B, 1, S, S] with `example_ids` or
      `left_to_right`.
    """
    visible = ops.cast(input_mask, "float32")[:, None]  # [B, 1, S]
    if example_ids is not None:
        is_same = ops.equal(example_ids[:, :, None], example_ids[:, None])
        visible = visible * ops.cast(is_same, "float32")  # [B, S, S]
    if left_to_right:
        positions = ops.arange(ops.shape(input_mask)[1], dtype="int32")
        is_past = ops.greater_equal(positions[:, None], positions)
        visible = visible * ops.cast(is_past, "float32")  # [B, S, S]
    return ops.expand_dims((1.0 - visible) * MASKED_SCORE, 1)


def last_positions(input_mask, example_ids=None, cls_positions=None):
    """Returns the position of the last token of each example.

    For a row of two examples, with 2 and 3 tokens, and one padding position,
    `cls_positions` [0, 2] give [1, 4].

    Args:
      input_mask: Ones for tokens and zeros for padding, [B, S].
      example_ids: Integers [B, S], or None for one example per row.
      cls_positions: Integers [B, K], the first token of each example; None for
        one example that begins the row.

    Returns:
      int32 [B, K] or [B, 1]; 0 for an example without tokens.
    """
    mask = ops.cast(input_mask, "int32")
    if example_ids is None:
        example_ids = ops.zeros_like(mask)
    if cls_positions is None:
        cls_positions = ops.zeros_like(mask[:, :1])
    numbers = ops.take_along_axis(example_ids, cls_positions, axis=1)
    is_own = ops.equal(numbers[..., None], example_ids[:, None])  # [B, K, S]
    positions = ops.arange(ops.shape(mask)[1], dtype="int32") * mask  # [B, S]
    return ops.max(ops.cast(is_own, "int32") * positions[:, None], axis=-1)
