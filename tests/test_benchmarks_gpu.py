"""The benchmark of GPUs, on CPUs: its batches, and its sides.

The sides run where their packages are: `make test-jax`, `make test-torch`.
"""

import importlib.util
import math
import sys

import keras
import pytest
from benchmark_modules import PEERS, importable

from bert_tf.errors import InputError


@pytest.fixture
def benchmark(benchmarks):
    return benchmarks("gpu")


@pytest.mark.parametrize(
    ("model", "inputs", "tokens", "rows", "examples"),
    [
        ("base", "128", None, 256, 256),
        ("large", "512", None, 32, 32),
        ("large", "packed", None, 32, 64),
        ("large", "packed", 1, 2, 4),
        ("base", "512", 1024, 2, 2),
    ],
)
def test_batches_of_a_gpu(benchmark, model, inputs, tokens, rows, examples):
    config = benchmark.GpuConfig(tokens=tokens, variants=("ours",))
    case = benchmark.case(config, model, inputs, "training")
    [request] = case.requests.values()
    assert len(request["rows"]) == rows
    assert {sum(row) for row in request["rows"]} == {request["max_seq_length"]}
    assert (
        request["config"]["hidden_size"] == {"base": 768, "large": 1024}[model]
    )
    assert request["is_training"]
    assert case.amount == 10 * examples


def test_all_cases_and_variables(benchmark, monkeypatch, capsys):
    """What the sides are started with; they are not."""
    given = {}

    def measure(comparison, cases, config, rounds, command, variables):
        given.update(variables=variables, names=[case.name for case in cases])
        given["commands"] = [command(side) for side in benchmark.TITLES]

    monkeypatch.setattr(benchmark, "measure", measure)
    monkeypatch.setattr(benchmark, "section", lambda comparison: "")
    monkeypatch.setenv("PYTHONPATH", "/theirs")
    benchmark.run(
        benchmark.GpuConfig(
            platform="cpu", models=("base",), jax_python="a", peer_python="b"
        )
    )
    assert given["names"][0] == "base, 8 x 16, training"
    assert given["names"][-1] == "base, 2 x 64 shared by 4, forward"
    assert len(given["names"]) == 6
    assert given["commands"] == [
        ["a", "bert_tf_jax.py"],
        ["b", "huggingface_training.py"],
        ["b", "huggingface_training.py", "--compile"],
    ]
    ours, theirs = (given["variables"][side] for side in ("ours", "eager"))
    assert theirs.items() < ours.items()
    assert theirs["CUDA_VISIBLE_DEVICES"] == "-1"
    assert ours["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"
    assert ours["PYTHONPATH"].endswith("benchmarks:/theirs")


def test_the_gpu_is_described(benchmark, monkeypatch):
    query = [sys.executable, "-c", "print('NVIDIA H200, 143771 MiB, 580')"]
    monkeypatch.setattr(benchmark, "QUERY", query)
    assert benchmark.describe_gpu() == "NVIDIA H200, 143771 MiB, 580"
    for query in (["no-such-program"], [sys.executable, "-c", "raise 1"]):
        monkeypatch.setattr(benchmark, "QUERY", query)
        with pytest.raises(InputError, match="nvidia-smi finds no GPU"):
            benchmark.run(benchmark.GpuConfig())


needs_jax = pytest.mark.skipif(
    keras.config.backend() != "jax", reason="Keras is not on JAX here"
)
needs_transformers = pytest.mark.skipif(
    not importlib.util.find_spec("transformers"), reason="no transformers here"
)


@pytest.fixture(
    params=[
        pytest.param(("bert_tf_jax", {}), marks=needs_jax),
        pytest.param(
            ("huggingface_training", {"compiled": False}),
            marks=needs_transformers,
        ),
    ],
    ids=["ours", "theirs"],
)
def side(request):
    """The module of a side, and arguments of its `make`."""
    name, more = request.param
    with importable(PEERS) as module_of:
        yield module_of(name), more


def request_of(benchmark, inputs, kind):
    config = benchmark.GpuConfig(
        platform="cpu", least_seconds=0, variants=("ours",)
    )
    return benchmark.case(config, "base", inputs, kind).requests["ours"]


def watched(make_step, results):
    """Wraps a function that makes steps; keeps their results in a list."""

    def make(*arguments):
        step = make_step(*arguments)

        def keep():
            results.append(step())
            return results[-1]

        return keep

    return make


def test_a_side_learns(benchmark, monkeypatch, side):
    """First it guesses, then it knows the words of its batch better."""
    request = request_of(benchmark, "packed", "training")
    module, more = side
    losses = []
    step = watched(module.training_step, losses)
    monkeypatch.setattr(module, "training_step", step)
    work = module.make(request, **more)
    for _ in range(10):
        work.steps()
    assert len(losses) == 10 * request["steps"]
    first, last = float(losses[0]), float(losses[-1])
    guessed = math.log(request["config"]["vocab_size"]) + math.log(2)
    assert first == pytest.approx(guessed, abs=0.3)
    assert last < first - 0.01
    work.products()
    assert work.peak_bytes() is None


@pytest.mark.parametrize("inputs", ["128", "packed"])
def test_a_side_runs_forward(benchmark, monkeypatch, side, inputs):
    request = request_of(benchmark, inputs, "forward")
    module, more = side
    answers = []
    step = watched(module.forward_pass, answers)
    monkeypatch.setattr(module, "forward_pass", step)
    module.make(request, **more).steps()
    assert len(answers) == request["steps"]
    pooled, tokens = sorted(
        answers[0].values(), key=lambda x: math.prod(x.shape)
    )
    width = request["config"]["hidden_size"]
    examples = [length for row in request["rows"] for length in row]
    shared = more == {} and inputs == "packed"
    rows = len(request["rows"]) if shared else len(examples)
    assert tuple(tokens.shape) == (rows, request["max_seq_length"], width)
    assert tuple(pooled.shape) == ((2, 3, width) if shared else (rows, width))
    for vectors in (pooled, tokens):
        assert "bfloat16" in str(vectors.dtype)
