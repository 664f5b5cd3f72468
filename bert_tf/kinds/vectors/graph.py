"""Vectors of texts or tokens in a graph, as extract_features.py exports them.

`ServedTask` serves the vectors of an `EmbeddingTask`.
"""

from collections.abc import Callable

import keras
import tensorflow as tf

from bert_tf.kinds.vectors.features import fill_padding
from bert_tf.kinds.vectors.task import pool
from bert_tf.serving.served import Served
from bert_tf.serving.windows import Tensors
from bert_tf.tasks.encoding import TextEncoding


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
        "pooled_output": pool(outputs, input_mask, "pooled"),
        "mean": pool(outputs, input_mask, "mean"),
    }


class ServedEncoder(Served):
    """Maps texts to embeddings.

    With embeddings of all tokens, answers also have `tokens`, strings [B, S],
    and `num_tokens`, int32 [B]; padding has the token "" and zeros.

    Args:
      model: A `BertModel`, built.
      encoding: How texts became ids in training.
      choose: Maps the outputs of the model and `input_mask`, int32 [B, S], to
        floats by name, [B, W], or [B, S, W] for embeddings of all tokens.
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

    def answer_tokens(self, features: Tensors) -> dict[str, tf.Tensor]:
        """Returns the embeddings for rows of `INPUTS`, int32 [B, S]."""
        mask = features["input_mask"]
        chosen = self._choose(self.model(features), mask)
        if all(vectors.shape.rank == 2 for vectors in chosen.values()):
            return chosen
        names = self.token_names(features["input_ids"])
        return {
            "num_tokens": tf.reduce_sum(mask, axis=1),
            "tokens": tf.where(mask > 0, names, ""),
            **{
                name: fill_padding(vectors, mask, 0.0)
                for name, vectors in chosen.items()
            },
        }
