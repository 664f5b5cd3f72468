"""What a pre-trained model is good for by itself: vectors and missing words."""

from collections.abc import Callable, Mapping

import keras
import tensorflow as tf

from bert_tf.errors import InputError
from bert_tf.serving.served import Served
from bert_tf.tasks.encoding import TextEncoding
from bert_tf.tokenization.wordpiece import require_special_tokens

MASK = "[MASK]"


def pooled_and_mean(
    outputs: Mapping[str, tf.Tensor], input_mask: tf.Tensor
) -> dict[str, tf.Tensor]:
    """Two vectors of each text: that of [CLS], pooled, and the mean of all.

    Args:
      outputs: Of a `BertModel`.
      input_mask: int32 [B, S].

    Returns:
      Dict of two float32 [B, H]: `pooled_output`, and `mean`, the mean of the
      last layer over all tokens, [CLS] and [SEP] included, as
      `extract_features.py --layers=-1 --pooling=mean` gives it.
    """
    vectors = tf.cast(outputs["sequence_output"], tf.float32)
    # LiteRT has no op for `[..., tf.newaxis]` where shapes are not known.
    is_token = tf.expand_dims(
        tf.cast(input_mask, tf.float32), axis=-1
    )  # [B, S, 1]
    num_tokens = tf.maximum(tf.reduce_sum(is_token, axis=1), 1.0)
    return {
        "pooled_output": tf.cast(outputs["pooled_output"], tf.float32),
        "mean": tf.reduce_sum(vectors * is_token, axis=1) / num_tokens,
    }


class ServedEncoder(Served):
    """A text in, vectors of it out.

    Args:
      model: A `BertModel`, built.
      encoding: How texts became ids when it was trained.
      choose: Which vectors: from the outputs of the model and `input_mask`,
        int32 [B, S], to floats by name, [B, W], or [B, S, W] for all tokens.
    """

    kind = "encoder"

    def __init__(
        self,
        model: keras.Model,
        encoding: TextEncoding,
        choose: Callable[..., dict[str, tf.Tensor]] = pooled_and_mean,
    ):
        super().__init__(model, encoding)
        self._choose = choose

    @property
    def inputs(self) -> dict[str, tf.TensorSpec]:
        return {"text": tf.TensorSpec([None], tf.string, "text")}

    @property
    def example(self) -> dict[str, list]:
        return {"text": ["The ferry was late.", "We had to wait for the boat."]}

    def answer(self, texts: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """The vectors of each text.

        Args:
          texts: `text`, strings [B].

        Returns:
          What `choose` gives. If that is vectors of all tokens, also `tokens`,
          strings [B, S], and `num_tokens`, int32 [B]: behind the last there
          are "" and vectors of zeros.
        """
        return self.answer_tokens(self.features(texts))

    def answer_tokens(
        self, features: Mapping[str, tf.Tensor]
    ) -> dict[str, tf.Tensor]:
        """As `answer`, from `FEATURES`, int32 [B, S]."""
        mask = features["input_mask"]
        chosen = self._choose(self.model(features), mask)
        if all(vectors.shape.rank == 2 for vectors in chosen.values()):
            return chosen
        is_token = mask > 0
        names = self.token_names(features["input_ids"])
        return {
            "num_tokens": tf.reduce_sum(mask, axis=1),
            "tokens": tf.where(is_token, names, ""),
            **{
                name: tf.where(is_token[..., tf.newaxis], vectors, 0.0)
                for name, vectors in chosen.items()
            },
        }


class ServedMaskedLM(Served):
    """A text with blanks in, the words that fit out.

    A blank is `[MASK]`, in these letters. A text that is too long is cut, and
    a blank behind the cut is none.

    Args:
      model: A `BertPretrainer`, built.
      encoding: How texts became ids when it was trained.
      top_k: Candidates for each blank, k; all words, if there are fewer.

    Raises:
      InputError: No candidates are asked for, or the vocabulary has no
        `[MASK]`.
    """

    kind = "masked language model"

    def __init__(
        self, model: keras.Model, encoding: TextEncoding, top_k: int = 5
    ):
        if top_k < 1:
            raise InputError(
                f"expected a top_k of 1 or more. Received: {top_k}"
            )
        vocab = encoding.tokenizer.vocab
        require_special_tokens(vocab, [MASK])
        super().__init__(model, encoding)
        self.top_k = min(top_k, len(vocab))
        self._mask_id = vocab[MASK]

    @property
    def inputs(self) -> dict[str, tf.TensorSpec]:
        return {"text": tf.TensorSpec([None], tf.string, "text")}

    @property
    def example(self) -> dict[str, list]:
        return {
            "text": [
                f"The capital of France is {MASK}.",
                f"She put the {MASK} on the table and sat {MASK}.",
            ]
        }

    def features(self, texts: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """`FEATURES`, int32 [B, S], with the id of `[MASK]` for a blank."""
        texts = self.checked(texts)
        ids = self.tokenizer.tokenize(texts["text"], keep=MASK)
        return self.tokenizer.pack([ids])

    def answer(self, texts: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """The words that fit into each blank, the others left open.

        Args:
          texts: `text`, strings [B].

        Returns:
          Dict of `num_blanks`, int32 [B]; and for the M blanks of the text
          with most of them, in the order of the text, `words`, the likeliest
          first, strings [B, M, k], and their `probabilities`, float32
          [B, M, k]. Behind a text's last blank they are "" and 0.
        """
        return self.answer_tokens(self.features(texts))

    def answer_tokens(
        self, features: Mapping[str, tf.Tensor]
    ) -> dict[str, tf.Tensor]:
        """As `answer`, from `FEATURES`, int32 [B, S]."""
        places = tf.where(features["input_ids"] == self._mask_id)  # [N, 2]
        logits = self._scores(features, places)
        probabilities, ids = tf.math.top_k(tf.nn.softmax(logits), self.top_k)

        def by_text(values):
            return tf.RaggedTensor.from_value_rowids(
                values,
                places[:, 0],
                nrows=tf.shape(features["input_ids"], tf.int64)[0],
                validate=False,
            )

        num_blanks = by_text(ids).row_lengths()
        return {
            "num_blanks": tf.cast(num_blanks, tf.int32),
            "words": by_text(self.token_names(ids)).to_tensor(),
            "probabilities": by_text(probabilities).to_tensor(),
        }

    def _scores(
        self, features: Mapping[str, tf.Tensor], places: tf.Tensor
    ) -> tf.Tensor:
        """The logits of the blanks alone.

        Args:
          features: `FEATURES`, int32 [B, S].
          places: Row and position of each blank, int64 [N, 2].

        Returns:
          Float32 [N, words].
        """
        model = self.model
        vectors = tf.gather_nd(model.bert(features)["sequence_output"], places)
        # To the head they are one text in which everything is masked.
        logits = model.cls.masked_lm(
            vectors[tf.newaxis], None, model.bert.embeddings.word_embeddings
        )[0]
        # A model may have room for more words than its vocabulary has.
        return logits[:, : len(self.encoding.vocab)]
