"""What stands on top of the encoder, and the models made of both.

Layers carry the names of the original's scopes; the legend of shapes is at
the top of `modeling.py`.
"""

import keras
from keras import ops

from bert_tf.config import BertConfig
from bert_tf.layers import ACTIVATIONS, BertLayer, FromConfig
from bert_tf.modeling import BertModel


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


@keras.saving.register_keras_serializable("bert_tf")
class MaskedLanguageModel(BertLayer):
    """Scores every word of the vocabulary at the masked positions.

    Source: section 3.1, task 1, of the paper; `get_masked_lm_output`.
    """

    def __init__(self, config, **kwargs):
        super().__init__(config, **kwargs)
        self.transform = self.make_part(Transform, "transform")

    def build(self, input_shape=None):
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
          masked_lm_positions: Integers [B, P] in [0, S).
          word_embeddings: The table of the encoder, floats [V, H]: input and
            output share it.

        Returns:
          Logits, float32 [B, P, V].
        """
        masked = ops.take_along_axis(
            sequence_output, masked_lm_positions[..., None], axis=1
        )  # [B, P, H]
        logits = ops.matmul(
            self.transform(masked),
            ops.transpose(ops.cast(word_embeddings, self.compute_dtype)),
        )  # [B, P, V]
        return ops.cast(logits, "float32") + ops.cast(
            self.output_bias, "float32"
        )


@keras.saving.register_keras_serializable("bert_tf")
class NextSentence(BertLayer):
    """Scores "the second text follows" (0) against "is random" (1).

    Source: section 3.1, task 2, of the paper; `get_next_sentence_output`.
    """

    def build(self, input_shape=None):
        self.output_weights = self.add_weight(
            name="output_weights",
            shape=(2, self.config.hidden_size),
            initializer=self.make_initializer(),
        )
        self.output_bias = self.add_weight(
            name="output_bias", shape=(2,), initializer="zeros"
        )

    def call(self, pooled_output):
        """Maps floats [B, H] to logits, float32 [B, 2]."""
        logits = ops.matmul(pooled_output, ops.transpose(self.output_weights))
        return ops.cast(logits + self.output_bias, "float32")


@keras.saving.register_keras_serializable("bert_tf")
class PretrainingHeads(BertLayer):
    """Both pre-training heads: the scope `cls`."""

    def __init__(self, config, **kwargs):
        super().__init__(config, **kwargs)
        self.masked_lm = self.make_part(MaskedLanguageModel, "predictions")
        self.next_sentence = self.make_part(NextSentence, "seq_relationship")

    def build(self, input_shape=None):
        self.masked_lm.build()
        self.next_sentence.build()


@keras.saving.register_keras_serializable("bert_tf")
class BertPretrainer(FromConfig, keras.Model):
    """BERT with the masked-LM and next-sentence heads.

    Args:
      config: A `BertConfig`, or the dict that its `to_dict` gave.
    """

    def __init__(
        self,
        config: BertConfig | dict,
        name: str = "bert_pretrainer",
        **kwargs,
    ):
        super().__init__(config, name=name, **kwargs)
        self.bert = self.make_part(BertModel, "bert")
        self.cls = self.make_part(PretrainingHeads, "cls")

    def build(self, input_shape=None):
        self.bert.build()
        self.cls.build()

    def call(self, inputs, training=False, seed=None):
        """Encodes a batch and scores it with both heads.

        Args:
          inputs: Dict of integers: what `BertModel` takes, and
            `masked_lm_positions` [B, P].
          training: Whether dropout is on.
          seed: Integer tensor [2] that decides every dropout mask, or None
            for the layers' own generators.

        Returns:
          Dict of `masked_lm_logits`, float32 [B, P, V], and
          `next_sentence_logits`, float32 [B, 2].
        """
        encoded = self.bert(inputs, training=training, seed=seed)
        return {
            "masked_lm_logits": self.cls.masked_lm(
                encoded["sequence_output"],
                ops.convert_to_tensor(inputs["masked_lm_positions"], "int32"),
                self.bert.embeddings.word_embeddings,
            ),
            "next_sentence_logits": self.cls.next_sentence(
                encoded["pooled_output"]
            ),
        }
