"""Predictions of masked words in a graph."""

import keras
import tensorflow as tf

from bert_tf.serving.served import Served
from bert_tf.serving.windows import Tensors
from bert_tf.tasks.encoding import TextEncoding
from bert_tf.tasks.masked_words import MASK, MaskedWordsTask, mask_cut_off
from bert_tf.tokenization.vocabulary_file import require_special_tokens


class ServedMaskedLM(Served):
    """Maps texts with `[MASK]` tokens to the words that fit.

    Args:
      model: A `BertPretrainer`, built.
      encoding: How texts became ids in training.
      top_k: The number of candidates for each mask, k, at most all tokens.

    Raises:
      InputError: If `top_k` is below 1, or the vocabulary has no `[MASK]`.
    """

    kind = "masked language model"

    def __init__(
        self, model: keras.Model, encoding: TextEncoding, top_k: int = 5
    ):
        vocab = encoding.tokenizer.vocab
        require_special_tokens(vocab, [MASK])
        super().__init__(model, encoding)
        self._task = MaskedWordsTask(model.config, encoding, top_k=top_k)
        self._mask_id = vocab[MASK]

    @property
    def example(self) -> dict[str, list]:
        return {
            "text": [
                f"The capital of France is {MASK}.",
                f"She put the {MASK} on the table and sat {MASK}.",
            ]
        }

    def features(self, texts: Tensors) -> dict[str, tf.Tensor]:
        """Returns `INPUTS`, int32 [B, S], in which `[MASK]` is one token.

        Raises:
          tf.errors.InvalidArgumentError: If a mask is truncated.
        """
        texts = self.checked(texts)
        ids = self.tokenizer.tokenize(texts["text"], keep=MASK)
        features = self.tokenizer.pack([ids])
        before, after = (
            tf.math.count_nonzero(tokens == self._mask_id)
            for tokens in (ids.values, features["input_ids"])
        )
        message = mask_cut_off(self.encoding.max_seq_length)
        tf.debugging.Assert(before == after, [message])
        return features

    def answer_tokens(self, features: Tensors) -> dict[str, tf.Tensor]:
        """Predicts the words of each mask while the other masks stay in place.

        Returns:
          `num_blanks`, the number of masks of each text, at most M, int32 [B];
          and for each mask, in text order, `words`, the most likely first,
          strings [B, M, k], and their `probabilities`, float32 [B, M, k]. Texts
          with fewer than M masks are padded with "" and 0.
        """
        positions = tf.where(features["input_ids"] == self._mask_id)  # [N, 2]
        logits = self._logits(features, positions)
        answer = self._task.best_words(logits)

        def by_text(values):
            return tf.RaggedTensor.from_value_rowids(
                values,
                positions[:, 0],
                nrows=tf.shape(features["input_ids"], tf.int64)[0],
                validate=False,
            )

        num_blanks = by_text(answer["ids"]).row_lengths()
        return {
            "num_blanks": tf.cast(num_blanks, tf.int32),
            "words": by_text(self.token_names(answer["ids"])).to_tensor(),
            "probabilities": by_text(answer["probabilities"]).to_tensor(),
        }

    def _logits(self, features: Tensors, positions: tf.Tensor) -> tf.Tensor:
        """Returns the logits at positions [N, 2] only, [N, vocab_size]."""
        model = self.model
        outputs = model.bert(features)
        vectors = tf.gather_nd(outputs["sequence_output"], positions)
        # The head takes them as one text in which every token is masked.
        logits = model.cls.masked_lm(
            vectors[tf.newaxis], None, model.bert.embeddings.word_embeddings
        )
        return logits[0]
