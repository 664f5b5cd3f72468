"""A Keras model from a checkpoint: the class that fits its head, filled."""

import keras

from bert_tf import heads
from bert_tf.errors import InputError
from bert_tf.interop.pretrained import Pretrained
from bert_tf.modeling import BertModel, checkpoint_variables
from bert_tf.training.weights import NEW_HEADS, restore

# The class for each kind of head, and whether its labels are counted.
_CLASSES = {
    "encoder": (BertModel, False),
    "pretraining": (heads.BertPretrainer, False),
    "masked_lm": (heads.BertPretrainer, False),
    "next_sentence": (heads.BertPretrainer, False),
    "classifier": (heads.BertClassifier, True),
    "choice": (heads.BertMultipleChoice, False),
    "token": (heads.BertTokenClassifier, True),
    "span": (heads.BertSpanLabeler, False),
}


def build_model(pretrained: Pretrained) -> keras.Model:
    """Makes the model that a checkpoint describes, with its weights.

    A part that the class has and the checkpoint has not is zero, as none that
    was trained is: see `keras_files.ModelWeights`.

    Raises:
      InputError: There is no configuration, the kind of head is not known, or
        weights are missing or of another shape.
    """
    if pretrained.config is None or pretrained.head is None:
        raise InputError(
            "expected a configuration and a head. Received: "
            f"{pretrained.path} with config={pretrained.config}, "
            f"head={pretrained.head}"
        )
    model_class, counts_labels = _CLASSES[pretrained.head]
    more = {}
    if counts_labels:
        more["num_labels"] = num_labels(pretrained)
    model = model_class(pretrained.config, **more)
    model.build()
    variables = checkpoint_variables(model)
    report = restore(variables, pretrained.weights, NEW_HEADS)
    for name in report.missing:
        variables[name].assign(keras.ops.zeros_like(variables[name]))
    return model


def num_labels(pretrained: Pretrained) -> int:
    """The number of classes of a classifier or tagger.

    Raises:
      InputError: It has no weights for classes.
    """
    shapes = pretrained.weights.shapes
    if "output_weights" not in shapes:
        raise InputError(
            f"expected output_weights in {pretrained.path}, as a "
            f"{pretrained.head} has them. Received: none"
        )
    return shapes["output_weights"][0]


def head_of_model(model: keras.Model) -> str | None:
    """The kind of head of one of this project's models; None of others."""
    for head, (model_class, _) in _CLASSES.items():
        if type(model) is model_class:
            return head
    return None
