"""BERT with a head: the models for pre-training and for each kind of task.

Every model takes the dict of integers that `BertModel` takes and returns a
dict of logits, float32 under any dtype policy. Its encoder is `model.bert`.
Every constructor also takes what `HeadModel` and Keras's take by name.
The legend of shapes is at the top of `modeling.py`; C is the number of labels
or of choices.
"""

from collections.abc import Sequence

import keras
from keras import ops

from bert_tf.config import BertConfig
from bert_tf.errors import InputError
from bert_tf.head_layers import Logits, PretrainingHeads, SpanHead
from bert_tf.layers import (
    TOKEN_FEATURES,
    FromConfig,
    TakesFeatures,
    fold_in,
    integers,
    positive_integer,
)
from bert_tf.modeling import BertModel

# Where a head draws its dropout mask: a site beyond those of any encoder.
HEAD_SITE = 1_000_000


class HeadModel(TakesFeatures, Logits, FromConfig, keras.Model):
    """The encoder, and on top of it what a subclass adds.

    Args:
      config: A `BertConfig`, or the dict that its `to_dict` gave.
      gradient_checkpointing: See `BertModel`.
      frozen_layers: See `BertModel`.
    """

    def __init__(
        self,
        config: BertConfig | dict,
        *,
        gradient_checkpointing: bool = False,
        frozen_layers: Sequence[str] = (),
        **kwargs,
    ):
        super().__init__(config, **kwargs)
        # As in `BertModel`: ids must not become floats of few digits.
        self.autocast = False
        self.bert = self.make_part(
            BertModel,
            "bert",
            gradient_checkpointing=gradient_checkpointing,
            frozen_layers=frozen_layers,
        )

    def build(self, input_shape=None):
        if self.built:
            return
        self.bert.build()
        self.build_head()

    def build_head(self) -> None:
        """Makes the weights on top of the encoder."""
        raise NotImplementedError

    def freeze_pooler(self) -> None:
        """For heads that do not look at it: it has no gradient.

        It stays in the model, and in its checkpoints, as in the original.
        """
        self.bert.pooler.trainable = False

    def get_config(self):
        return {
            **super().get_config(),
            "gradient_checkpointing": self.bert.gradient_checkpointing,
            "frozen_layers": self.bert.frozen_layers,
        }


@keras.saving.register_keras_serializable("bert_tf")
class BertPretrainer(HeadModel):
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
        self.cls = self.make_part(PretrainingHeads, "cls")

    def build_head(self):
        self.cls.build()

    def call(self, inputs, training=False, seed=None):
        """Encodes a batch and scores it with both heads.

        Args:
          inputs: Dict of integers: what `BertModel` takes, and
            `masked_lm_positions` [B, P]. Without it every position is scored,
            P = S, which takes more time and memory.
          training: Whether dropout is on.
          seed: Integer tensor [2] that decides every dropout mask, or None
            for the layers' own generators.

        Returns:
          Dict of `masked_lm_logits`, float32 [B, P, V], and
          `next_sentence_logits`, float32 [B, 2], or [B, K, 2] where there are
          `cls_positions` [B, K].
        """
        encoded = self.bert(inputs, training=training, seed=seed)
        return {
            "masked_lm_logits": self.cls.masked_lm(
                encoded["sequence_output"],
                integers(inputs, "masked_lm_positions"),
                self.bert.embeddings.word_embeddings,
            ),
            "next_sentence_logits": self.cls.next_sentence(
                encoded["pooled_output"]
            ),
        }

    def compute_output_shape(self, input_shape):
        encoded = self.bert.compute_output_shape(input_shape)
        return {
            "masked_lm_logits": self.cls.masked_lm.compute_output_shape(
                encoded["sequence_output"],
                input_shape.get("masked_lm_positions"),
            ),
            "next_sentence_logits": self.cls.next_sentence.compute_output_shape(
                encoded["pooled_output"]
            ),
        }


@keras.saving.register_keras_serializable("bert_tf")
class BertClassifier(HeadModel):
    """BERT that puts a text, or a pair of texts, into one of C classes.

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
      config: A `BertConfig`, or the dict that its `to_dict` gave.
      num_labels: Number of classes, C; 1 where a number is to be found.
      dropout: Share of the values below the scores that training sets to 0.
    """

    def __init__(
        self,
        config: BertConfig | dict,
        num_labels: int,
        dropout: float = 0.1,
        name: str = "bert_classifier",
        **kwargs,
    ):
        super().__init__(config, name=name, **kwargs)
        self.num_labels = positive_integer("num_labels", num_labels)
        self.dropout = self.make_dropout(dropout)

    def build_head(self):
        self.add_output(self.num_labels)

    def call(self, inputs, training=False, seed=None):
        """Classifies each text.

        Args:
          inputs: What `BertModel` takes.
          training: Whether dropout is on.
          seed: Integer tensor [2] or None, see `BertPretrainer`.

        Returns:
          Dict of `logits`, float32 [B, C], or [B, K, C] where there are
          `cls_positions` [B, K].
        """
        x = self.bert.pooled_output(inputs, training=training, seed=seed)
        seed = fold_in(seed, HEAD_SITE)
        x = self.dropout(x, training=training, seed=seed)
        return {"logits": self.score(x)}

    def compute_output_shape(self, input_shape):
        shape = self.bert.compute_output_shape(input_shape)["pooled_output"]
        return {"logits": (*shape[:-1], self.num_labels)}

    def get_config(self):
        return {
            **super().get_config(),
            "num_labels": self.num_labels,
            "dropout": self.dropout.rate,
        }


@keras.saving.register_keras_serializable("bert_tf")
class BertTokenClassifier(BertClassifier):
    """BERT that puts every token into one of C classes.

    Source: section 5.3 and figure 4 (d) of the paper. The arguments are those
    of `BertClassifier`.
    """

    def __init__(
        self,
        config: BertConfig | dict,
        num_labels: int,
        dropout: float = 0.1,
        name: str = "bert_token_classifier",
        **kwargs,
    ):
        super().__init__(config, num_labels, dropout, name=name, **kwargs)
        self.freeze_pooler()

    def call(self, inputs, training=False, seed=None):
        """As `BertClassifier`, with `logits`, float32 [B, S, C]."""
        x = self.bert(inputs, training=training, seed=seed)["sequence_output"]
        seed = fold_in(seed, HEAD_SITE)
        x = self.dropout(x, training=training, seed=seed)
        return {"logits": self.score(x)}

    def compute_output_shape(self, input_shape):
        shape = self.bert.compute_output_shape(input_shape)["sequence_output"]
        return {"logits": (*shape[:2], self.num_labels)}


@keras.saving.register_keras_serializable("bert_tf")
class BertMultipleChoice(HeadModel):
    """BERT that chooses among C continuations, scoring each on its own.

    Source: section 4.4 of the paper.

    Args:
      config: A `BertConfig`, or the dict that its `to_dict` gave.
      dropout: Share of the pooled values that training sets to 0.
    """

    # Batch, choices and sequence.
    input_rank = 3

    def __init__(
        self,
        config: BertConfig | dict,
        dropout: float = 0.1,
        name: str = "bert_multiple_choice",
        **kwargs,
    ):
        super().__init__(config, name=name, **kwargs)
        self.dropout = self.make_dropout(dropout)

    def build_head(self):
        self.add_output(1)

    def checked(self, inputs):
        features = super().checked(inputs)
        if "cls_positions" in features:
            raise InputError(
                "expected one text for each choice, without cls_positions, in "
                f"{self.name}. Received: {sorted(features)}"
            )
        return features

    def call(self, inputs, training=False, seed=None):
        """Scores the choices.

        Args:
          inputs: What `BertModel` takes but for `cls_positions`, with an axis
            more: [B, C, S]. Each row of it holds the context and one of the
            choices.
          training: Whether dropout is on.
          seed: Integer tensor [2] or None, see `BertPretrainer`.

        Returns:
          Dict of `logits`, float32 [B, C].
        """
        choices = ops.shape(inputs["input_ids"])[1]
        flat = {
            name: ops.reshape(inputs[name], (-1, ops.shape(inputs[name])[2]))
            for name in ("input_ids", *TOKEN_FEATURES)
            if name in inputs
        }  # [B * C, S]
        x = self.bert.pooled_output(flat, training=training, seed=seed)
        seed = fold_in(seed, HEAD_SITE)
        x = self.dropout(x, training=training, seed=seed)  # [B * C, H]
        return {"logits": ops.reshape(self.score(x), (-1, choices))}

    def compute_output_shape(self, input_shape):
        batch, choices, _ = input_shape["input_ids"]
        # For its error where the length is too much.
        self.bert.compute_output_shape(
            {name: shape[1:] for name, shape in input_shape.items()}
        )
        return {"logits": (batch, choices)}

    def get_config(self):
        return {**super().get_config(), "dropout": self.dropout.rate}


@keras.saving.register_keras_serializable("bert_tf")
class BertSpanLabeler(HeadModel):
    """BERT that finds the answer to a question in a text.

    Source: section 4.2 of the paper; `create_model` of `run_squad.py`.

    Args:
      config: A `BertConfig`, or the dict that its `to_dict` gave.
    """

    def __init__(
        self,
        config: BertConfig | dict,
        name: str = "bert_span_labeler",
        **kwargs,
    ):
        super().__init__(config, name=name, **kwargs)
        self.cls = self.make_part(SpanHead, "cls")
        self.freeze_pooler()

    def build_head(self):
        self.cls.build()

    def call(self, inputs, training=False, seed=None):
        """Scores every position, the question's and the padding's too.

        Args:
          inputs: What `BertModel` takes.
          training: Whether dropout is on.
          seed: Integer tensor [2] or None, see `BertPretrainer`.

        Returns:
          Dict of `start_logits` and `end_logits`, float32 [B, S].
        """
        encoded = self.bert(inputs, training=training, seed=seed)
        logits = self.cls.squad(encoded["sequence_output"])  # [B, S, 2]
        return {"start_logits": logits[..., 0], "end_logits": logits[..., 1]}

    def compute_output_shape(self, input_shape):
        shape = self.bert.compute_output_shape(input_shape)["sequence_output"]
        return {"start_logits": shape[:2], "end_logits": shape[:2]}
