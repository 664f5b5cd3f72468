"""examples/triton/model.py, called as Triton's Python backend calls it."""

import importlib.util
import shutil
import sys
import types
from typing import NamedTuple

import numpy as np
import pytest
from checkout import ROOT

from tests.serving import small_exports


class Tensor(NamedTuple):
    """`triton_python_backend_utils.Tensor`."""

    name: str
    rows: np.ndarray

    def as_numpy(self):
        return self.rows


class Response(NamedTuple):
    """`triton_python_backend_utils.InferenceResponse`."""

    tensors: list
    error: str | None = None


class Config:
    """What a model may add to its configuration."""

    def __init__(self):
        self.inputs, self.outputs = [], []
        self.add_input, self.add_output = (
            self.inputs.append,
            self.outputs.append,
        )

    def set_max_batch_size(self, size):
        self.max_batch_size = size

    def set_dynamic_batching(self):
        self.is_dynamic = True


@pytest.fixture
def open_model(tmp_path, monkeypatch):
    """Returns a function from a kind of export to Triton's model of it."""
    backend = types.SimpleNamespace(
        Tensor=Tensor,
        InferenceResponse=Response,
        TritonError=str,
        get_input_tensor_by_name=lambda request, name: request[name],
    )
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", backend)

    def open_model(kind):
        version = tmp_path / kind / "1"
        shutil.copytree(small_exports.path_of(kind), version / "saved_model")
        path = shutil.copy(ROOT / "examples/triton/model.py", version)
        spec = importlib.util.spec_from_file_location(kind, path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        model = module.TritonPythonModel()
        place = {"model_repository": str(version.parent), "model_version": "1"}
        model.initialize(place)
        return model

    return open_model


def request(**texts):
    """Returns a request: its inputs, [rows, 1] or [rows, choices]."""
    columns = {
        name: np.char.encode(column, "utf-8").astype(object)
        for name, column in texts.items()
    }
    return {
        name: Tensor(name, rows.reshape(len(rows), -1))
        for name, rows in columns.items()
    }


TEXTS = {
    "pairs": [{"text_a": "a b", "text_b": "é"}, {"text_a": "", "text_b": "b"}],
    "choices": [{"context": "a", "choices": ["b", "é", "", "a c"]}] * 2,
    "answers": [{"question": "a?", "context": "b c a"}] * 2,
    "tags": [{"text": "a b c"}, {"text": "a"}],
}


@pytest.mark.parametrize(
    "kind",
    # Which other model answers makes no difference to the program.
    [
        "tags",
        *(
            pytest.param(kind, marks=pytest.mark.slow)
            for kind in ("choices", "pairs", "answers")
        ),
    ],
)
def test_a_request_is_answered_as_alone(open_model, kind):
    """Requests that arrive together are one call of the export."""
    model = open_model(kind)
    first, second = TEXTS[kind]
    requests = [
        request(**{name: [text] for name, text in first.items()}),
        request(**{name: [text] * 2 for name, text in second.items()}),
    ]
    together = model.execute(requests)
    assert [len(r.tensors[0].rows) for r in together] == [1, 2]
    for alone, response in zip(requests, together, strict=True):
        [expected] = model.execute([alone])
        for ours, theirs in zip(
            expected.tensors, response.tensors, strict=True
        ):
            assert ours.name == theirs.name
            assert ours.rows.ndim == theirs.rows.ndim > 1
            # Rows of tags are as long as the most words of a batch.
            rows = theirs.rows[:, : ours.rows.shape[1]]
            if ours.rows.dtype == object:
                np.testing.assert_array_equal(ours.rows, rows)
            else:
                np.testing.assert_allclose(ours.rows, rows, rtol=1e-4)


def test_an_error_is_one_line_and_fails_no_other_request(open_model):
    model = open_model("tags")
    asked = [request(text=[text]) for text in ("a b", "a" * 100_001, "c")]
    first, wrong, last = model.execute(asked)
    message = "Expected text of at most 100,000 bytes. Split longer texts."
    assert wrong == Response([], message)
    for right, alone in ((first, asked[0]), (last, asked[2])):
        [expected] = model.execute([alone])
        assert right.error is None
        words = [dict(r.tensors)["words"].tolist() for r in (right, expected)]
        assert words[0] == words[1]


def test_inputs_and_outputs_are_described(open_model):
    config = open_model("tags").auto_complete_config(Config())
    assert config.inputs == [
        {"name": "text", "data_type": "TYPE_STRING", "dims": [1]}
    ]
    outputs = {output.pop("name"): output for output in config.outputs}
    assert outputs["num_words"] == {"data_type": "TYPE_INT32", "dims": [1]}
    assert outputs["words"] == {"data_type": "TYPE_STRING", "dims": [-1]}
    assert config.is_dynamic
