"""`MaskedWordPredictor`: the most probable words for each [MASK] of a text."""

import os
from typing import Any, Self

import keras
import numpy as np

from bert_tf.corpus.masking import MaskingVocabulary, mask
from bert_tf.corpus.settings import CreationConfig
from bert_tf.data import randomness
from bert_tf.data.batching import Features
from bert_tf.errors import InputError
from bert_tf.modeling.heads import BertPretrainer
from bert_tf.tasks.encoding import Encoding, TextEncoding
from bert_tf.tasks.examples import Example
from bert_tf.tasks.masked_words import (
    MASK,
    MASK_INPUTS,
    OUTPUT_BIAS,
    MaskedWordsTask,
    MaskEncoding,
    require_mask,
    require_masked_lm,
    without_padding,
)
from bert_tf.text_models.batches import targets_of
from bert_tf.text_models.inputs import as_columns
from bert_tf.text_models.predict import predict
from bert_tf.text_models.text_model import TextModel
from bert_tf.tokenization.vocabulary_file import require_special_tokens
from bert_tf.tokenization.wordpiece import continuation_mask, replaceable_ids


@keras.saving.register_keras_serializable("bert_tf")
class MaskedWordPredictor(TextModel):
    """Predicts masked words.

    Example:

        model = bert_tf.MaskedWordPredictor.from_pretrained(
            "hf://google-bert/bert-base-uncased"
        )
        model.predict("Paris is the [MASK] of France.", top_k=2)
        # For example
        # {'words': [['capital', 'heart']], 'probabilities': [[0.9, 0.01]]}

    `fit` takes texts without labels and continues the pre-training on masked
    words, which adapts a model to a domain. It masks different words in every
    epoch; `evaluate` with the same `batch_size` masks the same words. The
    next-sentence head is not trained.

    Args:
      model: A `BertPretrainer`.
      tokenizer: A `FullTokenizer` or a `BertTokenizer`, with [MASK] in its
        vocabulary.
      max_seq_length: The longest sequence, in tokens with [CLS] and [SEP].
    """

    model_class = BertPretrainer
    _inputs = MASK_INPUTS
    task_class = MaskedWordsTask
    _needs_labels = False

    def __init__(
        self,
        model: BertPretrainer,
        tokenizer: Any,
        max_seq_length: int = 128,
        name: str = "masked_word_predictor",
    ):
        super().__init__(model, tokenizer, max_seq_length, name=name)
        tokenizer = self.tokenizer
        require_special_tokens(tokenizer.vocab)
        # The pooler and the next-sentence head have no gradient.
        model.bert.pooler.trainable = False
        model.cls.next_sentence.trainable = False
        self._masking = CreationConfig(
            input_file="",
            output_file="",
            vocab_file="",
            max_predictions_per_seq=max(1, round(0.15 * max_seq_length)),
        )
        self._vocabulary = MaskingVocabulary(
            tokenizer.vocab[MASK],
            (tokenizer.vocab["[CLS]"], tokenizer.vocab["[SEP]"]),
            np.flatnonzero(replaceable_ids(tokenizer.inv_vocab)),
            continuation_mask(tokenizer.inv_vocab),
        )
        model.unused_variables = MaskedWordsTask.unused_variables

    @classmethod
    def from_pretrained(
        cls, path: str | os.PathLike[str], **options: Any
    ) -> Self:
        predictor = super().from_pretrained(path, **options)
        model = predictor.model
        names, _ = model.random_variables or ((), "")
        # `fit` continues a pre-training: it does not start one.
        require_masked_lm(
            str(path), model.checkpoint.objective, OUTPUT_BIAS not in names
        )
        return predictor

    def predict(  # type: ignore[override]
        self,
        x: Any,
        top_k: int = 5,
        verbose: Any = "auto",
        steps: int | None = None,
        callbacks: Any = None,
        batch_size: int = 32,
    ) -> Any:
        """Returns the most probable words for every [MASK] of each text.

        Args:
          x: Texts, or a single string.
          top_k: The number of words for each [MASK].
          verbose: See `TextModel.predict`.
          steps: The number of batches to predict.
          callbacks: Callbacks of Keras.
          batch_size: Batch size for texts of `max_seq_length`; batches of
            shorter texts are larger.

        Returns:
          A list of dicts, or one dict for a string: `words` and their
          `probabilities`, a list for each [MASK], the most probable first.
        """
        task = self.make_task(top_k=top_k)
        return predict(
            self, x, batch_size, verbose, steps, callbacks, task=task
        )

    def examples(self, x: Any, y: Any) -> list[Example]:
        texts = _texts(x)
        for text in texts:
            require_mask(text)
        return super().examples(texts, None)

    def _call(self, batch):
        return super()._call(without_padding(batch))

    def _features(self, x: Any, y: Any) -> Features:
        if y is not None:
            raise InputError(
                "Masked words are their own labels: leave out `y`."
            )
        encoding = self.make_encoding(Encoding, problem="regression")
        return encoding.features(super().examples(_texts(x), None))

    def _scores(self, data, batch_size, progress, features=None):
        return {}  # Keras computes the loss.

    def make_task(self, **options):
        encoding = self.make_encoding(MaskEncoding)
        return MaskedWordsTask(self.model.config, encoding, **options)

    def _drawn(self, batch, is_training):
        """Masks a batch, differently in every epoch of a training.

        Evaluations with the same batch size mask the same words, which makes
        their scores comparable.
        """
        seed = (1, int(batch["input_ids"].sum()))
        if is_training:
            seed = (0, int(batch["step"]))
        masked = mask(
            batch["input_ids"],
            batch["input_mask"].astype(bool),
            self._masking,
            self._vocabulary,
            randomness.keys(seed, np.arange(len(batch["input_ids"]))),
        )
        return {
            **batch,
            "input_ids": masked.input_ids,
            "masked_lm_positions": masked.positions,
            "masked_lm_ids": masked.ids,
            "masked_lm_weights": masked.weights,
        }

    def _targets(self, batch):
        size = self.model.config.vocab_size
        return targets_of(self.loss, batch["masked_lm_ids"], size)

    def _outputs_of_task(self, y_pred):
        return {"masked_lm_logits": y_pred}

    def call(self, inputs, training=False):
        """Maps features to the logits of masked positions, [B, P, V]."""
        return self.model(inputs, training=training)["masked_lm_logits"]

    def _served(self):
        from bert_tf.serving.served import ServedMaskedLM

        return ServedMaskedLM(self.model, self.make_encoding(TextEncoding))


def _texts(x: Any) -> list[str]:
    texts, *others = as_columns(x, ("text",))
    if others:
        raise InputError("Masked words need single texts, not pairs.")
    return texts
