"""BERT with a head: the models for pre-training and for each kind of task.

Every model is called with the arguments of `BertModel.call` and returns a dict
of logits, float32 under any dtype policy. Its encoder is `model.bert`. Every
constructor takes a `BertConfig`, or the dict from its `to_dict`, and, by name,
the arguments of `HeadModel` and of Keras's models.

Layers have the names of the original's scopes. The shape letters are explained
at the top of `encoder.py`; C is the number of labels or of choices.
"""

from collections.abc import Sequence

import keras
from keras import ops

from bert_tf.config import MAX_SIZE, BertConfig, positive_integer
from bert_tf.errors import InputError
from bert_tf.modeling.encoder import BertModel
from bert_tf.modeling.feature_model import (
    TOKEN_FEATURES,
    FeatureModel,
    integers,
)
from bert_tf.modeling.transformer import (
    ACTIVATIONS,
    BertLayer,
    Dropout,
    fold_in,
)

# The dropout `site` of heads for `fold_in`, larger than any encoder's.
HEAD_SITE = 1_000_000


def add_output_weights(
    layer: keras.layers.Layer,
    units: int,
    width: int,
    initializer: keras.Initializer | None = None,
) -> None:
    """Adds weights that map vectors of size `width` to `units` scores.

    Adds them directly to `layer`: the original's classifier weights have no
    scope. The default initializer is the original's for fine-tuning, which
    ignores the config's `initializer_range`.
    """
    layer.output_weights = layer.add_weight(
        name="output_weights",
        shape=(units, width),
        initializer=initializer
        or keras.initializers.TruncatedNormal(stddev=0.02),
    )
    layer.output_bias = layer.add_weight(
        name="output_bias", shape=(units,), initializer="zeros"
    )


def score(layer: keras.layers.Layer, x):
    """Maps floats [..., width] to logits, float32 [..., C]."""
    weights = ops.cast(layer.output_weights, x.dtype)
    logits = ops.matmul(x, ops.transpose(weights))
    return ops.cast(logits, "float32") + ops.cast(layer.output_bias, "float32")


@keras.saving.register_keras_serializable("bert_tf")
class Transform(BertLayer):
    """The layers between encoder and vocabulary: the scope `transform`."""

    def __init__(self, config, **kwargs):
        super().__init__(config, **kwargs)
        self.dense = self.make_dense(self.config.hidden_size)
        self.layer_norm = self.make_layer_norm()

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
        self.transform = self.make_inner(Transform, "transform")

    def build(self, sequence_output_shape=None, **_):
        super().build()
        self.output_bias = self.add_weight(
            name="output_bias",
            shape=(self.config.vocab_size,),
            initializer="zeros",
        )

    def call(self, sequence_output, masked_lm_positions, word_embeddings):
        """Scores the vocabulary.

        Args:
          sequence_output: Floats [B, S, H].
          masked_lm_positions: Integers [B, P] in [0, S), or None for every
            position, P = S, which takes longer: the product with the vocabulary
            is the largest of the model, and one position in seven is masked.
          word_embeddings: The table of the encoder, floats [V, H], which input
            and output share.

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
        bias = ops.cast(self.output_bias, "float32")
        return ops.cast(logits, "float32") + bias


@keras.saving.register_keras_serializable("bert_tf")
class NextSentence(BertLayer):
    """Scores "the second text follows" (0) against "is random" (1).

    Source: section 3.1, task 2, of the paper; `get_next_sentence_output`.
    """

    def build(self, pooled_output_shape=None):
        add_output_weights(
            self, 2, self.config.hidden_size, self.make_initializer()
        )

    def call(self, pooled_output):
        """Maps floats [..., H] to logits, float32 [..., 2]."""
        return score(self, pooled_output)


@keras.saving.register_keras_serializable("bert_tf")
class PretrainingHeads(BertLayer):
    """Both pre-training heads: the scope `cls`."""

    def __init__(self, config, **kwargs):
        super().__init__(config, **kwargs)
        self.masked_lm = self.make_inner(MaskedLanguageModel, "predictions")
        self.next_sentence = self.make_inner(NextSentence, "seq_relationship")

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
        scored = masked_lm_positions_shape or sequence_output_shape
        return (
            (*scored[:2], self.config.vocab_size),
            (*pooled_output_shape[:-1], 2),
        )


@keras.saving.register_keras_serializable("bert_tf")
class Span(BertLayer):
    """Scores each position as the start (0) and the end (1) of an answer.

    Source: section 4.2 of the paper; `create_model` of the original's
    `run_squad.py`, whose scope is `squad`.
    """

    def build(self, x_shape):
        add_output_weights(self, 2, x_shape[-1])

    def call(self, x):
        """Maps floats [B, S, width] to logits, float32 [B, S, 2]."""
        return score(self, x)


@keras.saving.register_keras_serializable("bert_tf")
class SpanHead(BertLayer):
    """The scope `cls` of a question answering model."""

    def __init__(self, config, **kwargs):
        super().__init__(config, **kwargs)
        self.squad = self.make_inner(Span, "squad")

    def build(self, x_shape):
        self.squad.build(x_shape)

    def compute_output_shape(self, x_shape):
        return (*x_shape[:2], 2)


class HeadModel(FeatureModel):
    """The encoder with the head of a task.

    Args:
      gradient_checkpointing, frozen_layers, output_attentions: See `BertModel`.

    Attributes:
      default_name: The name of a model that is made without a name.
      has_pooled_scores: Whether the head scores pooled vectors; if not, the
        pooler is frozen.
      width: The length of the vectors that the head scores.
    """

    default_name: str
    has_pooled_scores = True

    def __init__(
        self,
        config: BertConfig | dict,
        *,
        gradient_checkpointing: bool = False,
        frozen_layers: Sequence[str] = (),
        output_attentions: bool = False,
        name: str | None = None,
        **kwargs,
    ):
        super().__init__(config, name=name or self.default_name, **kwargs)
        self.bert = BertModel(
            self.config,
            gradient_checkpointing=gradient_checkpointing,
            frozen_layers=frozen_layers,
            output_attentions=output_attentions,
            dtype=self.dtype_policy,
        )
        self.width = self.config.hidden_size
        if not self.has_pooled_scores:
            self.freeze_pooler()

    def freeze_pooler(self) -> None:
        """Freezes the pooler, which has no gradient if the head ignores it.

        It stays in the model and in its checkpoints, as in the original.
        """
        self.bert.pooler.trainable = False
        self.unused_variables = r"bert/pooler/"

    def build(self, input_shape=None):
        if self.built:
            return
        shapes = self.feature_shapes(input_shape)
        self.bert.build(self.encoder_shapes(shapes))
        self.build_head(shapes)

    def encoder_shapes(self, shapes: dict) -> dict:
        """Returns the shapes of the encoder's features."""
        return shapes

    def build_head(self, shapes: dict) -> None:
        """Creates the weights on top of the encoder."""
        raise NotImplementedError

    def vectors(self, inputs, training, seed):
        """Returns the vectors [B, S, width], and the outputs of `BertModel`."""
        encoded = self.bert(inputs, training=training, seed=seed)
        return encoded["sequence_output"], encoded

    def pooled(self, inputs, training, seed):
        """Returns a vector for each text, and the outputs of `BertModel`.

        Returns:
          Floats [B, width], or [B, K, width] with `cls_positions`; and a dict,
          which is empty if only the pooled vectors are computed.
        """
        arguments = {"training": training, "seed": seed}
        if not self.bert.output_attentions:
            return self.bert.pooled_output(inputs, **arguments), {}
        encoded = self.bert(inputs, **arguments)
        return encoded["pooled_output"], encoded

    def score_shapes(self, shapes: dict, encoded: dict) -> dict:
        """Returns the shapes of the scores.

        Args:
          shapes: The shapes of the features.
          encoded: The shapes of the encoder's outputs.
        """
        raise NotImplementedError

    def compute_output_shape(self, input_shape):
        shapes = self.feature_shapes(input_shape)
        # This also checks the length.
        encoded = self.bert.compute_output_shape(self.encoder_shapes(shapes))
        scores = self.score_shapes(shapes, encoded)
        return self.bert.with_attentions(scores, encoded)

    def get_config(self):
        names = ("gradient_checkpointing", "frozen_layers", "output_attentions")
        shared = {name: getattr(self.bert, name) for name in names}
        return {**super().get_config(), **shared}


@keras.saving.register_keras_serializable("bert_tf")
class BertPretrainer(HeadModel):
    """BERT with the masked-LM and next-sentence heads."""

    head_name = "pretraining"
    default_name = "bert_pretrainer"

    def __init__(self, config: BertConfig | dict, **kwargs):
        super().__init__(config, **kwargs)
        self.cls = PretrainingHeads(
            self.config, name="cls", dtype=self.dtype_policy
        )

    def build_head(self, shapes):
        encoded = self.bert.compute_output_shape(shapes)
        self.cls.build(
            encoded["sequence_output"],
            encoded["pooled_output"],
            shapes.get("masked_lm_positions"),
        )

    def call(self, inputs, training=False, seed=None):
        """Encodes a batch and scores it with both heads.

        Args:
          inputs: Dict of integers: the features of `BertModel`, and
            `masked_lm_positions` [B, P]. Without it every position is scored,
            P = S, which takes more time and memory.
          training, seed: See `BertModel.call`.

        Returns:
          Dict of `masked_lm_logits`, float32 [B, P, V], and
          `next_sentence_logits`, float32 [B, 2], or [B, K, 2] with
          `cls_positions` [B, K].
        """
        encoded = self.bert(inputs, training=training, seed=seed)
        scores = {
            "masked_lm_logits": self.cls.masked_lm(
                encoded["sequence_output"],
                integers(inputs, "masked_lm_positions"),
                self.bert.embeddings.word_embeddings,
            ),
            "next_sentence_logits": self.cls.next_sentence(
                encoded["pooled_output"]
            ),
        }
        return self.bert.with_attentions(scores, encoded)

    def score_shapes(self, shapes, encoded):
        masked_lm, next_sentence = self.cls.compute_output_shape(
            encoded["sequence_output"],
            encoded["pooled_output"],
            shapes.get("masked_lm_positions"),
        )
        return {
            "masked_lm_logits": masked_lm,
            "next_sentence_logits": next_sentence,
        }


@keras.saving.register_keras_serializable("bert_tf")
class BertClassifier(HeadModel):
    """BERT for classification of texts and pairs of texts, with C classes.

    Example:

        config = BertConfig.from_name("tiny", vocab_size=30522)
        model = BertClassifier(config, num_labels=2)
        model.compile(
            AdamWeightDecay(2e-5),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
        model.fit({"input_ids": ids, "input_mask": mask}, labels)

    Source: figure 4 (a) and (b) of the paper; `create_model` of the
    original's `run_classifier.py`.

    Args:
      num_labels: Number of classes, C; 1 for regression.
      dropout: Dropout rate of the vectors that are scored.
    """

    head_name = "classifier"
    default_name = "bert_classifier"

    def __init__(
        self,
        config: BertConfig | dict,
        num_labels: int,
        dropout: float = 0.1,
        **kwargs,
    ):
        super().__init__(config, **kwargs)
        self.num_labels = positive_integer("num_labels", num_labels, MAX_SIZE)
        self.dropout = Dropout(dropout, dtype=self.dtype_policy)

    @property
    def labels(self) -> tuple[str, ...] | None:
        """The names of the classes, if `from_pretrained` knows them."""
        return self.checkpoint and self.checkpoint.labels

    def build_head(self, shapes):
        add_output_weights(self, self.num_labels, self.width)
        self.dropout.build((None, self.width))

    def call(self, inputs, training=False, seed=None):
        """Classifies each text.

        Returns:
          Dict of `logits`, float32 [B, C], or [B, K, C] with `cls_positions`
          [B, K].
        """
        x, encoded = self.pooled(inputs, training, seed)
        return self._logits(x, encoded, training, seed)

    def _logits(self, x, encoded, training, seed):
        seed = fold_in(seed, HEAD_SITE)
        x = self.dropout(x, training=training, seed=seed)
        return self.bert.with_attentions({"logits": score(self, x)}, encoded)

    def score_shapes(self, shapes, encoded):
        return {"logits": (*encoded["pooled_output"][:-1], self.num_labels)}

    def get_config(self):
        return {
            **super().get_config(),
            "num_labels": self.num_labels,
            "dropout": self.dropout.rate,
        }


@keras.saving.register_keras_serializable("bert_tf")
class BertTokenClassifier(BertClassifier):
    """BERT for token classification, with C classes.

    Source: section 5.3 and figure 4 (d) of the paper. Takes the arguments of
    `BertClassifier`.
    """

    head_name = "token"
    default_name = "bert_token_classifier"
    has_pooled_scores = False

    def call(self, inputs, training=False, seed=None):
        """Classifies each token; returns `logits`, float32 [B, S, C]."""
        x, encoded = self.vectors(inputs, training, seed)
        return self._logits(x, encoded, training, seed)

    def score_shapes(self, shapes, encoded):
        return {"logits": (*encoded["sequence_output"][:2], self.num_labels)}


@keras.saving.register_keras_serializable("bert_tf")
class BertMultipleChoice(HeadModel):
    """BERT for multiple choice: scores C continuations separately.

    Source: section 4.4 of the paper.

    Args:
      dropout: Dropout rate of the pooled vectors.
    """

    head_name = "choice"
    default_name = "bert_multiple_choice"

    # Batch, choices and sequence.
    input_rank = 3

    def __init__(
        self, config: BertConfig | dict, dropout: float = 0.1, **kwargs
    ):
        super().__init__(config, **kwargs)
        self.dropout = Dropout(dropout, dtype=self.dtype_policy)

    def encoder_shapes(self, shapes):
        return {name: (None, shape[-1]) for name, shape in shapes.items()}

    def build_head(self, shapes):
        add_output_weights(self, 1, self.width)
        self.dropout.build((None, self.width))

    def check_features(self, inputs):
        features = super().check_features(inputs)
        if "cls_positions" in features:
            raise InputError(
                f"{self.name} reads one text per choice. Leave out "
                "cls_positions."
            )
        return features

    def call(self, inputs, training=False, seed=None):
        """Scores the choices.

        Args:
          inputs: The features of `BertModel` without `cls_positions`, with one
            more axis: [B, C, S]. Each row along S holds the context and one of
            the choices.
          training, seed: See `BertModel.call`.

        Returns:
          Dict of `logits`, float32 [B, C], and with `output_attentions` also
          `attentions`, a list of floats [B, C, N, S, S].
        """
        choices = ops.shape(inputs["input_ids"])[1]
        flat = {
            name: ops.reshape(inputs[name], (-1, ops.shape(inputs[name])[2]))
            for name in ("input_ids", *TOKEN_FEATURES)
            if name in inputs
        }  # [B * C, S]
        x, encoded = self.pooled(flat, training, seed)
        seed = fold_in(seed, HEAD_SITE)
        x = self.dropout(x, training=training, seed=seed)  # [B * C, width]
        logits = ops.reshape(score(self, x), (-1, choices))
        attentions = [
            ops.reshape(x, (-1, choices, *ops.shape(x)[1:]))
            for x in encoded.get("attentions", ())
        ]
        return self.bert.with_attentions(
            {"logits": logits}, {"attentions": attentions}
        )

    def score_shapes(self, shapes, encoded):
        batch, choices, _ = shapes["input_ids"]
        encoded["attentions"] = [
            (batch, choices, *shape[1:])
            for shape in encoded.get("attentions", ())
        ]
        return {"logits": (batch, choices)}

    def get_config(self):
        return {**super().get_config(), "dropout": self.dropout.rate}


@keras.saving.register_keras_serializable("bert_tf")
class BertSpanLabeler(HeadModel):
    """BERT for extractive question answering.

    Source: section 4.2 of the paper; `create_model` of `run_squad.py`.
    """

    head_name = "span"
    default_name = "bert_span_labeler"
    has_pooled_scores = False

    def __init__(self, config: BertConfig | dict, **kwargs):
        super().__init__(config, **kwargs)
        self.cls = SpanHead(self.config, name="cls", dtype=self.dtype_policy)

    def build_head(self, shapes):
        self.cls.build((None, None, self.width))

    def call(self, inputs, training=False, seed=None):
        """Scores every position, including the question and padding.

        Returns:
          Dict of `start_logits` and `end_logits`, float32 [B, S].
        """
        vectors, encoded = self.vectors(inputs, training, seed)
        logits = self.cls.squad(vectors)  # [B, S, 2]
        scores = {"start_logits": logits[..., 0], "end_logits": logits[..., 1]}
        return self.bert.with_attentions(scores, encoded)

    def score_shapes(self, shapes, encoded):
        shape = encoded["sequence_output"][:2]
        return {"start_logits": shape, "end_logits": shape}
