"""The benchmark of GPUs, on CPUs: its work, its sides, their turns.

The sides themselves are asked where their packages are: `make test-jax`,
`make test-torch`.
"""

import importlib.util
import math
import sys

import keras
import pytest
from benchmark_modules import (
    PEERS,
    importable,
    stand_for_sides,
    write_side,
)

from tests import in_process

# It stands for a side: its steps are all of the same length.
PROGRAM = """
import os, time
import training

if "--compile" in sys.argv:
    sys.argv.remove("--compile")

def make(request):
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "-1"
    assert request["device"] == "cpu"
    pause = 0.001 * len(request["rows"]) * (2 + request["is_training"])
    return training.Work(
        lambda: time.sleep(pause), lambda: time.sleep(0.001), lambda: 2**20
    )

training.main(make, ["pytest"])
"""


@pytest.fixture(scope="module")
def launch(benchmarks):
    with in_process.script("gpu") as launch:
        yield launch


@pytest.fixture
def benchmark(launch):
    return sys.modules["gpu"]


@pytest.fixture
def set_flags(benchmark, monkeypatch):
    def set_flags(**values):
        for module in (benchmark, benchmark.step_sides):
            monkeypatch.setattr(module, "FLAGS", type("", (), values))

    return set_flags


def test_all_sides_take_turns_in_every_case(
    launch, benchmark, monkeypatch, tmp_path, capsys
):
    program = write_side(tmp_path, PROGRAM)
    stand_for_sides(program, benchmark, monkeypatch)
    path = tmp_path / "results.json"
    words = [
        "--platform=cpu",
        "--models=large",
        "--inputs=128,packed",
        "--rounds=1",
        "--least_seconds=0",
        f"--jax_python={sys.executable}",
        f"--peer_python={sys.executable}",
        f"--output={path}",
    ]
    assert launch(words) == 0
    kept = benchmark.Comparison.read(path)
    assert kept.cases == [
        "large, 8 x 16, training",
        "large, 8 x 16, forward",
        "large, 2 x 64 shared by 4, training",
        "large, 2 x 64 shared by 4, forward",
    ]
    for case in kept.cases:
        assert kept.sides(case) == list(benchmark.TITLES)
        assert kept.aims[case] == benchmark.AIMS
    # At least two asks of two steps each, of 8 or of 4 examples.
    assert {turn.amount % 16 for turn in kept.turns} == {0}
    assert all(turn.share > 0 for turn in kept.turns)
    section = capsys.readouterr().out
    title = "| sequences/s | memory, MiB | matmul peak, GFLOP/s | share of it |"
    assert title in section
    assert "no number says anything" in section


def test_cases_that_are_known_are_not_measured_again(
    launch, benchmark, monkeypatch, tmp_path
):
    program = write_side(tmp_path, PROGRAM)
    stand_for_sides(program, benchmark, monkeypatch)
    path = tmp_path / "results.json"
    words = [
        *("--platform=cpu", "--models=base", "--kinds=forward", "--go_on"),
        *("--rounds=1", "--least_seconds=0", "--variants=ours"),
        *(f"--jax_python={sys.executable}", f"--output={path}"),
    ]
    assert launch([*words, "--inputs=128"]) == 0
    first = benchmark.Comparison.read(path)
    assert launch([*words, "--inputs=128,512"]) == 0
    kept = benchmark.Comparison.read(path)
    assert kept.turns[: len(first.turns)] == first.turns
    assert kept.cases == ["base, 8 x 16, forward", "base, 2 x 64, forward"]
    assert kept.aims.keys() == {*kept.cases}
    assert launch([*words, "--inputs=128", "--rounds=2"]) == 0
    again = benchmark.Comparison.read(path)
    assert len(again.turns) == 2
    assert first.turns[0] not in again.turns
    first.machine["cores"] = "1,000"
    first.write(path)
    assert "error: expected a file with the machine" in launch(words)


@pytest.mark.parametrize(
    "query",
    [["no-such-program"], [sys.executable, "-c", "raise SystemExit(9)"]],
)
def test_there_has_to_be_a_gpu(launch, benchmark, monkeypatch, query, tmp_path):
    monkeypatch.setattr(benchmark, "QUERY", query)
    path = tmp_path / "results.json"
    status = launch([f"--output={path}"])
    assert status == (
        "error: expected a GPU that nvidia-smi knows. Received: none; "
        "--platform=cpu runs all of it at tiny sizes"
    )
    assert not path.exists()


def test_the_gpu_is_told(benchmark, monkeypatch):
    query = [sys.executable, "-c", "print('NVIDIA H200, 143771 MiB, 580')"]
    monkeypatch.setattr(benchmark, "QUERY", query)
    assert benchmark.gpu() == "NVIDIA H200, 143771 MiB, 580"


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
def test_batches_of_a_gpu(
    benchmark, set_flags, model, inputs, tokens, rows, examples
):
    set_flags(platform="cuda", tokens=tokens, least_seconds=1.0)
    work = benchmark.Work(model, inputs, "training")
    workload = work.workload
    assert (len(workload.rows), workload.num_examples) == (rows, examples)
    assert {sum(row) for row in workload.rows} == {work.max_seq_length}
    assert workload.config.hidden_size == {"base": 768, "large": 1024}[model]
    case = work.case(["ours", "eager"])
    assert case.amount == 10 * examples
    assert case.requests["ours"]["flops"] == 10 * workload.flops()
    assert case.aims == {"eager": 1.0}


def test_a_gpu_is_shared(benchmark, set_flags, monkeypatch):
    set_flags(platform="cuda")
    monkeypatch.setenv("PYTHONPATH", "/theirs")
    variables = benchmark.variables("ours")
    peers = benchmark.variables("eager")
    assert peers["CUDA_VISIBLE_DEVICES"] == "0"
    assert peers.items() < variables.items()
    assert variables["JAX_PLATFORMS"] == "cuda"
    assert variables["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"
    assert variables["PYTHONPATH"].endswith("benchmarks:/theirs")


def request_of(benchmark, set_flags, inputs, kind):
    set_flags(platform="cpu", tokens=None, least_seconds=0.0)
    work = benchmark.Work("base", inputs, kind)
    return work.case(["ours"]).requests["ours"]


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
    """A side's module, and what `make` is told beside a request."""
    name, more = request.param
    with importable(PEERS) as module_of:
        yield module_of(name), more


def watched(make_step, results):
    """What makes steps, whose results are kept in a list."""

    def make(*arguments):
        step = make_step(*arguments)

        def keep():
            results.append(step())
            return results[-1]

        return keep

    return make


def test_a_side_learns(benchmark, set_flags, monkeypatch, side):
    """At first it guesses, then it knows the words of its batch better."""
    request = request_of(benchmark, set_flags, "packed", "training")
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
def test_a_side_runs_forward(benchmark, set_flags, monkeypatch, side, inputs):
    request = request_of(benchmark, set_flags, inputs, "forward")
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
