"""Small models and texts of the tests of text models. Not a test."""

import dataclasses

from keras import ops

import bert_tf
from tests.checkpoints.small_models import CONFIG as TWO_LAYERS
from tests.checkpoints.small_models import VOCAB

CONFIG = dataclasses.replace(TWO_LAYERS, num_hidden_layers=1)
TOKENIZER = bert_tf.FullTokenizer(list(VOCAB))
TEXTS = ["a b c", "d", "e f g h i", "a a", "b", "i h", "c"]


def larger(model, factor=20):
    """Returns a built model with larger weights, whose answers differ."""
    model.build()
    for variable in model.trainable_variables:
        variable.assign(ops.convert_to_tensor(variable) * factor)
    return model
