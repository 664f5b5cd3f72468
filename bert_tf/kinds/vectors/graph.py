"""Text embeddings in a graph."""

from collections.abc import Callable
from typing import Any, Self

import keras
import tensorflow as tf

from bert_tf.kinds.vectors import task as embedding
from bert_tf.kinds.vectors.features import fill_padding
from bert_tf.serving.served import ServedWindows
from bert_tf.serving.windows import Tensors, in_batches
from bert_tf.tasks.encoding import TextEncoding
from bert_tf.tasks.task import Rows


def pooled_and_mean(
    outputs: Tensors, input_mask: tf.Tensor
) -> dict[str, tf.Tensor]:
    """Returns two embeddings of each text.

    Args:
      outputs: The outputs of a `BertModel`.
      input_mask: int32 [B, S].

    Returns:
      Two float32 [B, H]: `pooled_output` of [CLS], and `mean`, the mean of the
      last layer over all tokens with [CLS] and [SEP], as
      `extract_features.py --layers=-1 --pooling=mean` computes it.
    """
    return {
        "pooled_output": embedding.pool(outputs, input_mask, "pooled"),
        "mean": embedding.pool(outputs, input_mask, "mean"),
    }


class ServedEncoder(ServedWindows):
    """Maps texts to embeddings.

    With `doc_stride`, the embedding of a text is the mean of its windows'
    embeddings, weighted by their numbers of tokens, or the maximum.

    Args:
      model: A `BertModel`, built.
      encoding: How texts became ids in training.
      choose: Maps the outputs of the model and `input_mask`, int32 [B, S], to
        floats by name, [B, W], or [B, S, W] for embeddings of all tokens.
      finish: Maps the embeddings of texts, floats [B, W], to the results.
    """

    kind = "encoder"

    def __init__(
        self,
        model: keras.Model,
        encoding: TextEncoding,
        choose: Callable[..., dict[str, tf.Tensor]] = pooled_and_mean,
        finish: Callable[[tf.Tensor], tf.Tensor] = tf.identity,
    ):
        super().__init__(model, encoding)
        self._choose = choose
        self._finish = finish

    @classmethod
    def of_task(
        cls,
        model: keras.Model,
        task: embedding.EmbeddingTask,
        encoding: TextEncoding,
    ) -> Self:
        """Serves the embeddings of a task; `encoding` is for single texts."""

        def choose(outputs: Tensors, input_mask: tf.Tensor) -> Any:
            return task.row_outputs({"input_mask": input_mask}, outputs)

        def finish(vectors: tf.Tensor) -> tf.Tensor:
            return task.decode({"vector": vectors})["vector"]

        return cls(model, encoding, choose, finish)

    @property
    def example(self) -> dict[str, list]:
        return {"text": ["The ferry was late.", "We had to wait for the boat."]}

    def answer(self, texts: Tensors) -> dict[str, tf.Tensor]:
        """Returns the embeddings of texts.

        Args:
          texts: `text`, strings [B].

        Returns:
          The result of `choose`. With embeddings of all tokens, also `tokens`,
          strings [B, S], and `num_tokens`, int32 [B]; padding has the token ""
          and zeros.
        """
        if not self._is_split:
            return self.answer_tokens(self.features(texts))
        text, features = self.rows(texts)
        vectors = in_batches(self._chosen, features)["vector"]
        vectors = Rows(text, tf.size(texts["text"])).pool(
            vectors,
            self.encoding.window_pooling,
            tf.reduce_sum(features["input_mask"], axis=1),
        )
        return {"vector": self._finish(vectors)}

    def _chosen(self, features: Tensors) -> dict[str, tf.Tensor]:
        return self._choose(self.model(features), features["input_mask"])

    def answer_tokens(self, features: Tensors) -> dict[str, tf.Tensor]:
        """Returns the embeddings for rows of `INPUTS`, int32 [B, S]."""
        mask = features["input_mask"]
        chosen = self._chosen(features)
        if all(vectors.shape.rank == 2 for vectors in chosen.values()):
            return {name: self._finish(x) for name, x in chosen.items()}
        names = self.token_names(features["input_ids"])
        return {
            "num_tokens": tf.reduce_sum(mask, axis=1),
            "tokens": tf.where(mask > 0, names, ""),
            **{
                name: fill_padding(vectors, mask, 0.0)
                for name, vectors in chosen.items()
            },
        }
