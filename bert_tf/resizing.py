"""Room for new words: the same model with a larger vocabulary."""

import dataclasses

import keras
from keras import ops

from bert_tf.errors import InputError
from bert_tf.layers import FromConfig


def resize_vocabulary(model: keras.Model, vocab_size: int) -> keras.Model:
    """Copies a model and adds words at the end of its vocabulary.

    The row of a new word is the mean of the old rows, and so is its bias in
    the masked-LM head. A new word's score is then the mean of the scores of
    the old ones, whatever the text, and its probability no more than the mean
    of theirs (Jensen): with k words more than V, each old word keeps at least
    V / (V + k) of its probability. A row that is drawn at random may instead
    win everywhere. Source: Hewitt 2021, "Initializing New Word Embeddings for
    Pretrained Language Models".

    All other weights are the same bits, and what is frozen stays so. The copy
    is not compiled. The new words go at the end of `vocab.txt`.

    Args:
      model: A `BertModel` or one of the models with a head. It stays as it is.
      vocab_size: Number of words that the copy has.

    Returns:
      A built model of the same class.

    Raises:
      InputError: `vocab_size` is less than the model's, or no integer, or the
        model is not one of ours.
    """
    config = _resized(model, vocab_size)
    if not model.built:
        model.build()
    larger = type(model).from_config(
        {**model.get_config(), "config": config.to_dict()}
    )
    larger.build()
    for old, new in zip(model.weights, larger.weights, strict=True):
        new.assign(_grown(old, new.shape[0] - old.shape[0]))
        new.trainable = old.trainable
    return larger


def _resized(model: keras.Model, vocab_size: int):
    """The config of `model` for a larger vocabulary."""
    if not isinstance(model, FromConfig):
        raise InputError(
            "expected a model of bert_tf; resize it before you build your own "
            f"on top. Received: {type(model).__name__}"
        )
    config = dataclasses.replace(model.config, vocab_size=vocab_size)
    if vocab_size < model.config.vocab_size:
        raise InputError(
            f"expected a vocab_size of {model.config.vocab_size} or more: "
            "words are added, and none is taken away. Received: "
            f"{vocab_size}"
        )
    return config


def _grown(table, count: int):
    """Appends `count` times the mean of the rows; only with V do they grow."""
    if count == 0:
        return table
    mean = ops.mean(ops.cast(table, "float32"), axis=0, keepdims=True)
    rows = ops.repeat(ops.cast(mean, table.dtype), count, axis=0)
    return ops.concatenate([ops.convert_to_tensor(table), rows], axis=0)
