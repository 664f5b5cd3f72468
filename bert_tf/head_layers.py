"""The layers on top of the encoder: vectors in, scores out.

They carry the names of the original's scopes. The legend of shapes is at the
top of `modeling.py`; C is the number of scores. Scores (logits) are float32
under any dtype policy.
"""

import keras
from keras import ops

from bert_tf.layers import ACTIVATIONS, BertLayer


def make_bilstm(
    size: int, name: str, dtype: keras.DTypePolicy
) -> keras.layers.Bidirectional:
    """Makes two LSTMs, one in each direction, whose outputs stand side by side.

    Args:
      size: Of each, L: the outputs are floats [B, S, 2 L].
      name: Of the scope of their weights.
      dtype: Their policy.
    """
    if dtype.variable_dtype == "bfloat16":
        # Keras draws orthogonal matrices by a decomposition that TensorFlow
        # has not got in bfloat16.
        dtype = keras.DTypePolicy("mixed_bfloat16")
    lstm = keras.layers.LSTM(
        size,
        return_sequences=True,
        # Its cuDNN kernels are none that XLA could compile.
        use_cudnn=False,
        name="lstm",
        dtype=dtype,
    )
    return keras.layers.Bidirectional(lstm, name=name, dtype=dtype)


class Logits:
    """A layer or model that ends in scores; goes before its Keras class."""

    def compute_output_spec(self, *args, **kwargs):
        # Keras assumes the compute dtype, which only attentions have.
        outputs = super().compute_output_spec(*args, **kwargs)
        result = keras.tree.map_structure(
            lambda spec: keras.KerasTensor(spec.shape, "float32"), outputs
        )
        if isinstance(outputs, dict) and "attentions" in outputs:
            result["attentions"] = outputs["attentions"]
        return result

    def add_output(
        self,
        units: int,
        initializer: keras.Initializer | None = None,
        width: int | None = None,
    ) -> None:
        """Makes the weights for `units` scores.

        They belong to the layer or model itself: those of the original's
        classifier have no scope.

        Args:
          units: Number of scores, C.
          initializer: By default the original's for fine-tuning, which does
            not follow the config's `initializer_range`.
          width: Length of the vectors below; the hidden size, H, if it is not
            given.
        """
        self.output_weights = self.add_weight(
            name="output_weights",
            shape=(units, width or self.config.hidden_size),
            initializer=initializer
            or keras.initializers.TruncatedNormal(stddev=0.02),
        )
        self.output_bias = self.add_weight(
            name="output_bias", shape=(units,), initializer="zeros"
        )

    def score(self, x):
        """Maps floats [..., width] to logits, float32 [..., C]."""
        matrix = ops.cast(self.output_weights, x.dtype)
        logits = ops.matmul(x, ops.transpose(matrix))
        return ops.cast(logits, "float32") + ops.cast(
            self.output_bias, "float32"
        )


@keras.saving.register_keras_serializable("bert_tf")
class Transform(BertLayer):
    """The dense layer between encoder and vocabulary: `transform`."""

    def __init__(self, config, **kwargs):
        super().__init__(config, **kwargs)
        self.dense = self.make_dense(self.config.hidden_size)
        self.layer_norm = self.make_layer_norm()

    def build(self, input_shape=None):
        self.dense.build((None, None, self.config.hidden_size))
        self.layer_norm.build((None, None, self.config.hidden_size))

    def call(self, x):
        """Maps floats [B, P, H] to [B, P, H]."""
        return self.layer_norm(
            ACTIVATIONS[self.config.hidden_act](self.dense(x))
        )

    def compute_output_shape(self, input_shape):
        return input_shape


@keras.saving.register_keras_serializable("bert_tf")
class MaskedLanguageModel(Logits, BertLayer):
    """Scores every word of the vocabulary at the masked positions.

    Source: section 3.1, task 1, of the paper; `get_masked_lm_output`.
    """

    def __init__(self, config, **kwargs):
        super().__init__(config, **kwargs)
        self.transform = self.make_part(Transform, "transform")

    def build(
        self,
        sequence_output_shape=None,
        masked_lm_positions_shape=None,
        word_embeddings_shape=None,
    ):
        self.transform.build()
        self.output_bias = self.add_weight(
            name="output_bias",
            shape=(self.config.vocab_size,),
            initializer="zeros",
        )

    def call(self, sequence_output, masked_lm_positions, word_embeddings):
        """Scores the vocabulary.

        The positions are gathered first: about one in seven is masked, and
        the product with the vocabulary is the most expensive of the model.

        Args:
          sequence_output: Floats [B, S, H].
          masked_lm_positions: Integers [B, P] in [0, S), or None for every
            position, P = S.
          word_embeddings: The table of the encoder, floats [V, H]: input and
            output share it.

        Returns:
          Logits, float32 [B, P, V].
        """
        if masked_lm_positions is not None:
            sequence_output = ops.take_along_axis(
                sequence_output, masked_lm_positions[..., None], axis=1
            )  # [B, P, H]
        logits = ops.matmul(
            self.transform(sequence_output),
            ops.transpose(ops.cast(word_embeddings, self.compute_dtype)),
        )  # [B, P, V]
        return ops.cast(logits, "float32") + ops.cast(
            self.output_bias, "float32"
        )

    def compute_output_shape(
        self,
        sequence_output_shape,
        masked_lm_positions_shape=None,
        word_embeddings_shape=None,
    ):
        scored = masked_lm_positions_shape or sequence_output_shape
        return (*scored[:2], self.config.vocab_size)


@keras.saving.register_keras_serializable("bert_tf")
class NextSentence(Logits, BertLayer):
    """Scores "the second text follows" (0) against "is random" (1).

    Source: section 3.1, task 2, of the paper; `get_next_sentence_output`.
    """

    def build(self, input_shape=None):
        self.add_output(2, self.make_initializer())

    def call(self, pooled_output):
        """Maps floats [..., H] to logits, float32 [..., 2]."""
        return self.score(pooled_output)

    def compute_output_shape(self, input_shape):
        return (*input_shape[:-1], 2)


@keras.saving.register_keras_serializable("bert_tf")
class PretrainingHeads(BertLayer):
    """Both pre-training heads: the scope `cls`."""

    def __init__(self, config, **kwargs):
        super().__init__(config, **kwargs)
        self.masked_lm = self.make_part(MaskedLanguageModel, "predictions")
        self.next_sentence = self.make_part(NextSentence, "seq_relationship")

    def build(
        self,
        sequence_output_shape=None,
        pooled_output_shape=None,
        masked_lm_positions_shape=None,
    ):
        self.masked_lm.build()
        self.next_sentence.build()

    def compute_output_shape(
        self,
        sequence_output_shape,
        pooled_output_shape,
        masked_lm_positions_shape=None,
    ):
        return (
            self.masked_lm.compute_output_shape(
                sequence_output_shape, masked_lm_positions_shape
            ),
            self.next_sentence.compute_output_shape(pooled_output_shape),
        )


@keras.saving.register_keras_serializable("bert_tf")
class Span(Logits, BertLayer):
    """Scores each position as the start (0) and the end (1) of an answer.

    Source: section 4.2 of the paper; `create_model` of the original's
    `run_squad.py`, whose scope is `squad`.
    """

    def build(self, input_shape=None):
        self.add_output(2, width=input_shape and input_shape[-1])

    def call(self, sequence_output):
        """Maps floats [B, S, width] to logits, float32 [B, S, 2]."""
        return self.score(sequence_output)

    def compute_output_shape(self, input_shape):
        return (*input_shape[:2], 2)


@keras.saving.register_keras_serializable("bert_tf")
class SpanHead(BertLayer):
    """What finds answers: the scope `cls` of a question answering model."""

    def __init__(self, config, **kwargs):
        super().__init__(config, **kwargs)
        self.squad = self.make_part(Span, "squad")

    def build(self, input_shape=None):
        self.squad.build(input_shape)

    def compute_output_shape(self, input_shape):
        return self.squad.compute_output_shape(input_shape)
