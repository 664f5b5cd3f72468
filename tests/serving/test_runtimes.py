"""Models of other runtimes compute what the export does."""

import importlib.util
import logging
import types

import absl.logging
import pytest

from bert_tf.errors import InputError
from bert_tf.serving import runtimes
from bert_tf.serving.served import ServedMaskedLM
from tests.serving import small_exports

# Extras, which the environment of TensorFlow 2.20 does without.
for package in ("onnxruntime", "tf2onnx", "ai_edge_litert"):
    pytest.importorskip(package)

RUNTIMES = [*runtimes.RUNTIMES]


def described(ops=("MatMul",), **more):
    """As much of an export as is looked at before anything is converted."""
    card = {"kind": "a", "dtype_policy": "float32", "parameters": 9, **more}
    return types.SimpleNamespace(path="a/7", ops=set(ops), card=card)


@pytest.mark.parametrize("name", RUNTIMES)
def test_reports_a_missing_package(monkeypatch, name):
    runtimes.require_packages(name)
    missing = runtimes.RUNTIMES[name].packages[-1]
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda package: None if package == missing else find(package),
    )
    with pytest.raises(InputError) as caught:
        runtimes.require_packages(name)
    assert f"package {missing}. Run: pip install 'bert_tf[{name}]'" in str(
        caught.value
    )


@pytest.mark.parametrize(
    ("exported", "message"),
    [
        (described(dtype_policy="mixed_bfloat16"), "precision=float32"),
        (described(kind=ServedMaskedLM.kind), "returns words"),
        (described(["MatMul", "While"]), "LSTMs"),
        (described(["StatelessWhile"]), "LSTMs"),
        (described(parameters=1 << 29), "536,870,912 weights"),
    ],
)
def test_refuses_unsupported_exports(exported, message):
    with pytest.raises(InputError, match=f"^a/7: .*{message}"):
        runtimes.require_convertible(exported)


def test_accepts_the_largest_export():
    runtimes.require_convertible(described(parameters=(1 << 29) - 1))


@pytest.mark.slow
def test_refuses_lstms():
    with pytest.raises(InputError, match="LSTMs"):
        runtimes.require_convertible(small_exports.opened("lstms"))


def difference(exported, content, name):
    """From the SavedModel, in batches of all sizes and lengths."""
    batches = runtimes.random_features(exported)
    expected = runtimes.measure(exported.answer_tokens, batches)
    run = runtimes.RUNTIMES[name].load(content)
    found = runtimes.measure(run, batches)
    for one, other in zip(expected.answers, found.answers, strict=True):
        assert one.keys() == other.keys() == exported.numbers.keys()
        for key, values in one.items():
            assert values.dtype == other[key].dtype
    return runtimes.difference(expected, found)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "name"), [("choices", "onnx"), ("tags", "litert")]
)
def test_converted_models_give_the_same_outputs(kind, name):
    exported = small_exports.opened(kind)
    runtimes.require_convertible(exported)
    content = runtimes.RUNTIMES[name].convert(exported)
    off = difference(exported, content, name)
    assert off.is_rounding, off


def test_silences_converters():
    talker = logging.getLogger(runtimes._LOGGERS[0])
    before = (talker.level, absl.logging.get_verbosity())
    with runtimes._quiet():
        assert not talker.isEnabledFor(logging.WARNING)
        assert absl.logging.get_verbosity() == absl.logging.ERROR
    assert (talker.level, absl.logging.get_verbosity()) == before
