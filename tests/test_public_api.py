"""What `import bert_tf` offers."""

import inspect
import json
import subprocess
import sys

import keras
import pytest

import bert_tf


@pytest.mark.parametrize("name", bert_tf.__all__)
def test_every_public_name_can_be_had(name):
    assert getattr(bert_tf, name) is not None


def test_all_names_are_listed():
    assert set(bert_tf.__all__) == {*bert_tf._HOMES, "__version__"}
    assert set(bert_tf.__all__) <= set(dir(bert_tf))


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'BertModle'"):
        _ = bert_tf.BertModle


def test_importing_the_package_imports_no_framework():
    code = (
        "import sys, bert_tf; bert_tf.BertConfig; "
        "print({'tensorflow', 'keras'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"


# For every argument of a public class that Keras can save, a value that is
# not its default.
VALUES = {
    "beta_1": 0.5,
    "beta_2": 0.75,
    "config": bert_tf.BertConfig(7, hidden_size=4, num_attention_heads=2),
    "do_lower_case": False,
    "dropout": 0.25,
    "epsilon": 0.125,
    "exclude_from_layer_adaptation": ["gamma"],
    "exclude_from_weight_decay": ["beta"],
    "frozen_layers": ["layer_0", "pooler"],
    "gradient_checkpointing": True,
    "layers": "sum_all",
    "learning_rate": 0.5,
    "lstm_size": 5,
    "max_seq_length": 11,
    "name": "mine",
    "num_labels": 3,
    "num_train_steps": 5,
    "num_warmup_steps": 2,
    "output_attentions": True,
    "output_hidden_states": True,
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
]


def parameters(cls) -> dict[str, inspect.Parameter]:
    """What the constructors of a class and of our classes above it take."""
    ours = [
        c
        for c in cls.__mro__
        if c.__module__.startswith("bert_tf.") and "__init__" in vars(c)
    ]
    return {
        name: parameter
        for c in reversed(ours)
        for name, parameter in inspect.signature(c.__init__).parameters.items()
        if name != "self" and parameter.kind is not parameter.VAR_KEYWORD
    }


def other_value(key: str, parameter: inspect.Parameter):
    """A value for an argument that is not its default."""
    default = parameter.default
    value = not default if isinstance(default, bool) else VALUES[key]
    assert value != default, key
    return value


def plain(value):
    """A value as it is in JSON."""
    return value.to_dict() if isinstance(value, bert_tf.BertConfig) else value


def test_the_public_classes_are_those_of_keras():
    assert {"BertModel", "BertClassifier", "BertTokenizer", "Lamb"} <= {*SAVED}


@pytest.mark.parametrize("name", SAVED)
def test_every_argument_survives_saving(name):
    cls = getattr(bert_tf, name)
    arguments = {
        key: other_value(key, parameter)
        for key, parameter in parameters(cls).items()
    }
    if "add_pooling_layer" in arguments:
        arguments["frozen_layers"] = ["layer_0"]
    made = cls(**arguments)
    text = json.dumps(keras.saving.serialize_keras_object(made))
    assert json.loads(text)["registered_name"] == f"bert_tf>{name}"
    again = keras.saving.deserialize_keras_object(json.loads(text))
    assert type(again) is cls
    found = json.loads(json.dumps(again.get_config()))
    assert found == json.loads(json.dumps(made.get_config()))
    for key, value in arguments.items():
        assert found[key] == plain(value), key
