"""BERT with a head: the models for pre-training and for each kind of task.

Every model takes the dict of integers that `BertModel` takes and returns a
dict of logits, float32 under any dtype policy. Its encoder is `model.bert`.
Every constructor also takes what `HeadModel` (those for tasks: `TaskModel`)
and Keras's take by name. The legend of shapes is at the top of `modeling.py`;
C is the number of labels or of choices.
"""

from collections.abc import Sequence

import keras
from keras import ops

from bert_tf.config import BertConfig
from bert_tf.errors import InputError
from bert_tf.head_layers import (
    Logits,
    PretrainingHeads,
    SpanHead,
    make_bilstm,
)
from bert_tf.layers import (
    TOKEN_FEATURES,
    FromConfig,
    TakesFeatures,
    fold_in,
    integers,
    positive_integer,
)
from bert_tf.modeling import BertModel
from bert_tf.transformer import last_positions

# Where a head draws its dropout mask: a site beyond those of any encoder.
HEAD_SITE = 1_000_000


class HeadModel(TakesFeatures, Logits, FromConfig, keras.Model):
    """The encoder, and on top of it what a subclass adds.

    Args:
      config: A `BertConfig`, or the dict that its `to_dict` gave.
      gradient_checkpointing: See `BertModel`.
      frozen_layers: See `BertModel`.
      output_attentions: Also return `attentions`, as `BertModel` does.
    """

    def __init__(
        self,
        config: BertConfig | dict,
        *,
        gradient_checkpointing: bool = False,
        frozen_layers: Sequence[str] = (),
        output_attentions: bool = False,
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
            output_attentions=output_attentions,
        )

    def build(self, input_shape=None):
        if self.built:
            return
        shapes = self.feature_shapes(input_shape)
        self.bert.build(self.encoder_shapes(shapes))
        self.build_head(shapes)

    def encoder_shapes(self, shapes: dict) -> dict:
        """Returns the shapes that the encoder gets, by feature."""
        return shapes

    def build_head(self, shapes: dict) -> None:
        """Makes the weights on top of the encoder."""
        raise NotImplementedError

    def with_attentions(self, scores: dict, encoded: dict) -> dict:
        """Adds the encoder's attentions to the scores, if the model has them.

        Args:
          scores: What the head returns: tensors, or their shapes.
          encoded: What the encoder returns, likewise.
        """
        if self.bert.output_attentions:
            return {**scores, "attentions": encoded["attentions"]}
        return scores

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
            "output_attentions": self.bert.output_attentions,
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
        return self.with_attentions(scores, encoded)

    def compute_output_shape(self, input_shape):
        encoded = self.bert.compute_output_shape(input_shape)
        masked_lm, next_sentence = self.cls.compute_output_shape(
            encoded["sequence_output"],
            encoded["pooled_output"],
            input_shape.get("masked_lm_positions"),
        )
        scores = {
            "masked_lm_logits": masked_lm,
            "next_sentence_logits": next_sentence,
        }
        return self.with_attentions(scores, encoded)


class TaskModel(HeadModel):
    """A model to be fine-tuned, on request with a BiLSTM below its head.

    Source: "+ BiLSTM" in section 5.1 of the paper, where it shall help a model
    that looks to the left alone; its size there is not told. Here each of its
    directions is as wide as the encoder, as those of section 5.3 are.

    Args:
      config: A `BertConfig`, or the dict that its `to_dict` gave.
      bilstm_head: Whether the encoder's vectors go through a bidirectional LSTM
        before they are scored. What the head of a whole text looks at are then
        its last states in both directions; the pooler takes no part.
    """

    def __init__(
        self, config: BertConfig | dict, *, bilstm_head: bool = False, **kwargs
    ):
        super().__init__(config, **kwargs)
        self.bilstm = None
        # The width of what is scored: that of the encoder, or of both LSTMs.
        self.width = self.config.hidden_size
        if bilstm_head:
            self.bilstm = make_bilstm(self.width, "bilstm", self.dtype_policy)
            self.width *= 2
            self.freeze_pooler()

    def build_head(self, shapes):
        if self.bilstm is not None:
            self.bilstm.build((None, None, self.config.hidden_size))
        self.build_output(shapes)

    def build_output(self, shapes: dict) -> None:
        """Makes the weights of the scores, of vectors of `width` numbers."""
        raise NotImplementedError

    def checked(self, inputs):
        features = super().checked(inputs)
        shared = {"example_ids", "cls_positions"} & features.keys()
        if self.bilstm is not None and shared:
            raise InputError(
                "expected one text a row, which an LSTM reads as a whole, "
                f"without {' and '.join(sorted(shared))}, in {self.name} with "
                f"bilstm_head. Received: {sorted(features)}"
            )
        return features

    def vectors(self, inputs, training, seed):
        """Returns what is scored of every token, and the encoder's outputs.

        Returns:
          Floats [B, S, width], and the dict that `BertModel` returns.
        """
        encoded = self.bert(inputs, training=training, seed=seed)
        x = encoded["sequence_output"]
        if self.bilstm is None:
            return x, encoded
        is_token = ops.cast(_mask(inputs), "bool")
        x = self.bilstm(x, mask=is_token)
        # Zeros as they are, but without the mask that Keras ties to them.
        return ops.where(is_token[..., None], x, 0), encoded

    def pooled(self, inputs, training, seed):
        """Returns what is scored of a text, and the encoder's outputs.

        Returns:
          Floats [B, width], see `BertModel`, and the dict that `BertModel`
          returns; an empty dict if only the pooled vectors are computed.
        """
        arguments = {"training": training, "seed": seed}
        if self.bilstm is None and not self.bert.output_attentions:
            return self.bert.pooled_output(inputs, **arguments), {}
        if self.bilstm is None:
            encoded = self.bert(inputs, **arguments)
            return encoded["pooled_output"], encoded
        x, encoded = self.vectors(inputs, training, seed)
        last = last_positions(_mask(inputs))[..., None]  # [B, 1, 1]
        there = ops.take_along_axis(x, last, axis=1)[:, 0, : self.width // 2]
        back = x[:, 0, self.width // 2 :]
        return ops.concatenate([there, back], axis=-1), encoded

    def get_config(self):
        return {
            **super().get_config(),
            "bilstm_head": self.bilstm is not None,
        }


def _mask(inputs):
    """1 for tokens, 0 for padding, integers [B, S]."""
    return inputs.get("input_mask", ops.ones_like(inputs["input_ids"]))


@keras.saving.register_keras_serializable("bert_tf")
class BertClassifier(TaskModel):
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

    def build_output(self, shapes):
        self.add_output(self.num_labels, width=self.width)
        logits = self.compute_output_shape(shapes)["logits"]
        self.dropout.build((*logits[:-1], self.width))

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
        x, encoded = self.pooled(inputs, training, seed)
        seed = fold_in(seed, HEAD_SITE)
        x = self.dropout(x, training=training, seed=seed)
        return self.with_attentions({"logits": self.score(x)}, encoded)

    def compute_output_shape(self, input_shape):
        encoded = self.bert.compute_output_shape(input_shape)
        shape = (*encoded["pooled_output"][:-1], self.num_labels)
        return self.with_attentions({"logits": shape}, encoded)

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
        x, encoded = self.vectors(inputs, training, seed)
        seed = fold_in(seed, HEAD_SITE)
        x = self.dropout(x, training=training, seed=seed)
        return self.with_attentions({"logits": self.score(x)}, encoded)

    def compute_output_shape(self, input_shape):
        encoded = self.bert.compute_output_shape(input_shape)
        shape = (*encoded["sequence_output"][:2], self.num_labels)
        return self.with_attentions({"logits": shape}, encoded)


@keras.saving.register_keras_serializable("bert_tf")
class BertMultipleChoice(TaskModel):
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

    def encoder_shapes(self, shapes):
        return {name: (None, shape[-1]) for name, shape in shapes.items()}

    def build_output(self, shapes):
        self.add_output(1, width=self.width)
        self.dropout.build((None, self.width))

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
        x, encoded = self.pooled(flat, training, seed)
        seed = fold_in(seed, HEAD_SITE)
        x = self.dropout(x, training=training, seed=seed)  # [B * C, width]
        scores = {"logits": ops.reshape(self.score(x), (-1, choices))}
        return self.with_attentions(scores, self._by_choice(encoded, choices))

    def _by_choice(self, encoded: dict, choices) -> dict:
        """Splits the rows of the attentions: [B, C, N, S, S] each."""
        return {
            "attentions": [
                ops.reshape(x, (-1, choices, *ops.shape(x)[1:]))
                for x in encoded.get("attentions", ())
            ]
        }

    def compute_output_shape(self, input_shape):
        batch, choices, _ = input_shape["input_ids"]
        # This also checks the length.
        encoded = self.bert.compute_output_shape(
            self.encoder_shapes(input_shape)
        )
        attentions = [
            (batch, choices, *shape[1:])
            for shape in encoded.get("attentions", ())
        ]
        return self.with_attentions(
            {"logits": (batch, choices)}, {"attentions": attentions}
        )

    def get_config(self):
        return {**super().get_config(), "dropout": self.dropout.rate}


@keras.saving.register_keras_serializable("bert_tf")
class BertSpanLabeler(TaskModel):
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

    def build_output(self, shapes):
        batch_and_length = self.compute_output_shape(shapes)["start_logits"]
        self.cls.build((*batch_and_length, self.width))

    def call(self, inputs, training=False, seed=None):
        """Scores every position, the question's and the padding's too.

        Args:
          inputs: What `BertModel` takes.
          training: Whether dropout is on.
          seed: Integer tensor [2] or None, see `BertPretrainer`.

        Returns:
          Dict of `start_logits` and `end_logits`, float32 [B, S].
        """
        vectors, encoded = self.vectors(inputs, training, seed)
        logits = self.cls.squad(vectors)  # [B, S, 2]
        scores = {"start_logits": logits[..., 0], "end_logits": logits[..., 1]}
        return self.with_attentions(scores, encoded)

    def compute_output_shape(self, input_shape):
        encoded = self.bert.compute_output_shape(input_shape)
        shape = encoded["sequence_output"][:2]
        scores = {"start_logits": shape, "end_logits": shape}
        return self.with_attentions(scores, encoded)
