"""What `import bert_tf` offers."""

import inspect
import json

import keras
import pytest

import bert_tf


def test_every_public_name_is_listed_and_exists():
    assert set(bert_tf.__all__) <= set(dir(bert_tf))
    for name in bert_tf.__all__:
        assert getattr(bert_tf, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'BertModle'"):
        _ = bert_tf.BertModle


# For every argument of a public class that Keras can save, a value that is
# not its default.
VALUES = {
    "beta_1": 0.5,
    "beta_2": 0.75,
    "config": bert_tf.BertConfig(7, hidden_size=4, num_attention_heads=2),
    "dropout": 0.25,
    "epsilon": 0.125,
    "exclude_from_layer_adaptation": ["gamma"],
    "exclude_from_weight_decay": ["beta"],
    "frozen_layers": ["layer_0", "pooler"],
    "learning_rate": 0.5,
    "max_seq_length": 11,
    "name": "mine",
    "num_labels": 3,
    "num_train_steps": 5,
    "num_warmup_steps": 2,
    "padding": "longest",
    "peak": 0.25,
    "rate_multipliers": [["kernel", 0.5]],
    "strip_accents": True,
    "vocabulary": ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a"],
    "weight_decay_rate": 0.375,
}
SAVED = [
    name
    for name in bert_tf.__all__
    if hasattr(getattr(bert_tf, name), "get_config")
    # tests/text_models saves and loads them.
    and not issubclass(getattr(bert_tf, name), bert_tf.TextModel)
]


def parameters(cls) -> dict[str, inspect.Parameter]:
    """Returns the arguments of a class and of its bases in bert_tf."""
    found = {}
    for base in reversed(cls.__mro__):
        if base.__module__.startswith("bert_tf.") and "__init__" in vars(base):
            found |= inspect.signature(base.__init__).parameters
    return {
        name: parameter
        for name, parameter in found.items()
        if name != "self" and parameter.kind is not parameter.VAR_KEYWORD
    }


def in_json(value):
    """Returns a value after it was saved as JSON."""
    is_config = isinstance(value, bert_tf.BertConfig)
    return json.loads(json.dumps(value.to_dict() if is_config else value))


@pytest.mark.parametrize("name", SAVED)
def test_every_argument_survives_saving(name):
    assert {"BertModel", "BertClassifier", "BertTokenizer", "Lamb"} <= {*SAVED}
    cls = getattr(bert_tf, name)
    arguments = {}
    for key, parameter in parameters(cls).items():
        default = parameter.default
        is_switch = isinstance(default, bool)
        arguments[key] = not default if is_switch else VALUES[key]
        assert arguments[key] != default, key
    if "add_pooling_layer" in arguments:
        arguments["frozen_layers"] = ["layer_0"]
    made = cls(**arguments)
    saved = in_json(keras.saving.serialize_keras_object(made))
    assert saved["registered_name"] == f"bert_tf>{name}"
    again = keras.saving.deserialize_keras_object(saved)
    assert type(again) is cls
    found = in_json(again.get_config())
    assert found == in_json(made.get_config())
    for key, value in arguments.items():
        assert found[key] == in_json(value), key
