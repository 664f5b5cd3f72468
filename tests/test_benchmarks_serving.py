"""The benchmark of serving: its sides, how they are asked, what it sums up."""

import dataclasses
import json
import pathlib
import subprocess
import sys
from unittest import mock

import numpy as np
import pytest
from benchmark_modules import BENCHMARKS, PEERS, importable, write_side
from checkout import ROOT

from bert_tf.interop import huggingface
from tests import in_process
from tests.interop.small_models import pretrained


@pytest.fixture(scope="module")
def minilm(benchmarks):
    return benchmarks("minilm")


@pytest.fixture(scope="module")
def sides(benchmarks):
    return benchmarks("serving_sides")


@pytest.fixture(scope="module")
def serving_comparison(benchmarks):
    return benchmarks("serving_comparison")


@pytest.fixture(scope="module")
def serving_section(benchmarks):
    return benchmarks("serving_section")


@pytest.fixture(scope="module")
def peers():
    """The peers' programs; what they import is not installed here."""
    absent = ("onnxruntime", "torch", "transformers")
    with importable(PEERS, absent=absent) as module_of:
        yield module_of


# The weights.


def test_all_sides_get_one_model(minilm, tmp_path, monkeypatch):
    """The encoder as it is, and under it the same head each time."""
    encoder = pretrained("pretraining")
    monkeypatch.setattr(minilm, "open_pretrained", lambda path: encoder)
    written = []
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        minilm.write_classifier("checkpoint", str(tmp_path / name))
        written.append(huggingface.read(str(tmp_path / name)))
    one, other = written
    assert one.head == "classifier"
    assert one.labels == ("negative", "positive")
    assert one.vocab == encoder.vocab
    assert set(one.weights.shapes) == {
        *(name for name in encoder.weights if name.startswith("bert/")),
        *("output_weights", "output_bias"),
    }
    for name in one.weights.shapes:
        expected = encoder.weights.get(name, other.weights[name])
        np.testing.assert_array_equal(one.weights[name], expected)
    assert one.weights["output_weights"].std() > 0.1


def test_the_weights_are_not_installed(minilm, monkeypatch):
    monkeypatch.setattr(minilm, "PACKAGE", "no_such_package")
    with pytest.raises(SystemExit, match="which `make venv` installs"):
        minilm.minilm()


# How a side answers.


def test_every_text_is_answered_in_its_order(peers):
    def answer(texts):
        return [text.upper() for text in texts], [[len(t)] for t in texts]

    reply = peers("answering").answered(answer, [["a", "bcd"], ["ef"]])
    assert reply["labels"] == ["A", "BCD", "EF"]
    assert reply["probabilities"] == [[1], [3], [2]]
    assert len(reply["seconds"]) == 2
    assert min(*reply["seconds"], reply["cpu_seconds"]) >= 0


def test_our_command(sides):
    words = sides.SIDES["ours_bfloat16"].command(pathlib.Path("/m"), 61, 3)
    program = PEERS / "saved_model_serving.py"
    assert words == [str(program), "--model=/m/bfloat16"]


@pytest.mark.parametrize(
    ("name", "precision", "is_compiled"),
    [
        ("eager", "float32", False),
        ("compiled", "float32", True),
        ("eager_autocast", "autocast", False),
        ("eager_bfloat16", "bfloat16", False),
        ("compiled_autocast", "autocast", True),
        ("compiled_bfloat16", "bfloat16", True),
    ],
)
def test_torch_understands_its_command(
    sides, peers, monkeypatch, name, precision, is_compiled
):
    side = sides.SIDES[name]
    words = side.command(pathlib.Path("/m"), 61, 3)
    monkeypatch.setattr(sys, "argv", words)
    assert vars(peers("huggingface_serving").parse_arguments()) == {
        "model": "/m/huggingface",
        "precision": precision,
        "compile": is_compiled,
        "max_seq_length": 61,
        "num_threads": 3,
    }
    assert side.is_compiled == is_compiled
    assert side.precision == precision.replace("autocast", "bfloat16")
    assert side.aim == (1.0 if is_compiled else 1.2)


def test_onnxruntime_understands_its_command(sides, peers, monkeypatch):
    words = sides.SIDES["onnxruntime"].command(pathlib.Path("/m"), 61, 3)
    monkeypatch.setattr(sys, "argv", words)
    assert vars(peers("onnxruntime_serving").parse_arguments()) == {
        "model": "/m/huggingface",
        "onnx": "/m/model.onnx",
        "max_seq_length": 61,
        "num_threads": 3,
    }


def test_probabilities_of_large_logits(peers):
    logits = np.array([[1000.0, 1000.0], [0.0, np.log(3)]])
    found = peers("onnxruntime_serving").softmax(logits)
    np.testing.assert_allclose(found, [[0.5, 0.5], [0.25, 0.75]])


# What is summed up.


@pytest.fixture
def make_round(serving_comparison):
    def make(side, size, seconds, median, **more):
        facts = {
            "num_texts": 64,
            "p90_seconds": 2 * median,
            "cpu_seconds": 2 * seconds,
            "other_cpu_seconds": 0.0,
        }
        return serving_comparison.Round(
            side, size, seconds=seconds, median_seconds=median, **facts | more
        )

    return make


@pytest.fixture
def results(serving_comparison, make_round):
    """Ours is twice as fast in large batches, and slower in small ones."""
    rounds = []
    for more in (0.0, 0.5, 1.5):
        rounds += [
            make_round("ours", 32, 1.0 + more, 0.5),
            make_round("eager", 32, 2.0 + 2 * more, 1.0),
            make_round("ours", 1, 1.0, 0.004 + more),
            make_round("eager", 1, 1.0, 0.002 + more / 2),
        ]
    return serving_comparison.Comparison(
        "python benchmarks/serving.py",
        serving_comparison.Settings(
            "/data/SST-2/dev.tsv", "sentence", 64, "/weights/small/model"
        ),
        {
            "processor": "A processor, AVX2",
            "cores": "2",
            "memory": "7 GiB",
            "system": "Linux 6.1",
        },
        {"ours": {"tensorflow": "2.21"}, "eager": {"torch": "2.13"}},
        {
            "ours": serving_comparison.Agreement(0, 0.0),
            "eager": serving_comparison.Agreement(3, 0.000_000_34),
        },
        {"compiled": "there is no C++ compiler"},
        rounds,
    )


def test_a_file_of_results_there_and_back(
    serving_comparison, results, tmp_path
):
    path = tmp_path / "new" / "serving.json"
    results.write(path)
    assert serving_comparison.Comparison.read(path) == results


def test_a_round(serving_comparison):
    """Ten batches, the last of which takes long."""
    seconds = [0.25] * 9 + [7.75]
    reply = {"seconds": seconds, "cpu_seconds": 15.0}
    turn = serving_comparison.Round.of("ours", [["a", "b"]] * 10, reply, 17.5)
    assert turn == serving_comparison.Round(
        *("ours", 2, 20, 10.0, 0.25, 0.25, 15.0, 2.5)
    )
    assert turn.texts_per_second == 2.0
    assert not turn.is_timed
    alone = dataclasses.replace(turn, other_cpu_seconds=0.9)
    assert alone.is_timed


@pytest.mark.parametrize(
    ("count", "place"), [(1, 1), (9, 9), (10, 9), (11, 10), (100, 90)]
)
def test_nine_of_ten(serving_comparison, count, place):
    numbers = list(range(1, count + 1))
    assert serving_comparison.p90(numbers[::-1]) == place


def test_agreement(serving_comparison):
    one = {"labels": ["a", "b", "a"], "probabilities": [[0.5], [1], [0]]}
    other = {"labels": ["a", "a", "a"], "probabilities": [[0.5], [0.75], [0.5]]}
    found = serving_comparison.Agreement.of(one, other)
    assert found == serving_comparison.Agreement(1, 0.5)
    assert serving_comparison.Agreement.of(other, one) == found


def test_times_are_of_rounds_that_were_alone(results, make_round):
    disturbed = make_round("ours", 32, 8.0, 0.5, other_cpu_seconds=4.0)
    results.rounds.append(disturbed)
    assert results.spread("ours", 32, "seconds").high == 2.5
    results.rounds = [disturbed]
    assert results.spread("ours", 32, "seconds").high == 8.0


def test_ratios(results):
    assert results.times_as_fast("ours", "eager", 32) == 2.0
    assert results.times_as_fast("eager", "ours", 32) == 0.5
    assert results.times_as_fast("ours", "eager", 1) == pytest.approx(
        0.252 / 0.504
    )


# What is told.


def test_a_section_has_all_that_was_measured(serving_section, results):
    lines = serving_section.section(results).splitlines()
    assert lines[0] == "## Serving: strings in, labels out"
    assert results.command in lines
    assert "- tensorflow 2.21, torch 2.13" in lines
    assert (
        "- Not measured: torch, compiled (float32): there is no C++ compiler"
    ) in lines
    text = "\n".join(lines)
    assert "small/model with a head of random weights; the first 64 " in text
    # 64 texts in 1, 1.5 and 2.5 seconds.
    assert (
        "| bert_tf | float32 | 2 x 3 (6 timed) | 43 (26 to 64) | "
        "504.00 (4.00 to 1,504.00) | 1,008.00 (8.00 to 3,008.00) | 0 | 0 |"
    ) in lines
    assert "| 3e-07 | 3 |" in text
    assert lines[-1] == "| torch | float32 | 2.00 | 0.50 | 1.2 |"
    assert "\n\n\n" not in text


def test_tables_have_as_many_cells_in_each_line(serving_section, results):
    for rows in (
        serving_section.spreads(results),
        serving_section.ratios(results),
    ):
        assert len({len(row) for row in rows}) == 1


def test_only_the_same_precision_is_compared(serving_section, results):
    """Ours in float32 has no peer among those in bfloat16."""
    results.rounds = [
        dataclasses.replace(
            turn, side=turn.side.replace("eager", "eager_autocast")
        )
        for turn in results.rounds
    ]
    for rows in (results.versions, results.agreement):
        rows["eager_autocast"] = rows.pop("eager")
    assert len(list(serving_section.ratios(results))) == 1
    assert "times as fast" not in serving_section.section(results)


def test_a_file_is_shown_again(serving_section, results, tmp_path, capsys):
    results.write(tmp_path / "serving.json")
    serving_section.main(str(tmp_path / "serving.json"))
    section = serving_section.section(results)
    assert capsys.readouterr().out == section
    page = tmp_path / "page.md"
    page.write_text(
        "above\n<!-- serving: written -->\nold\n<!-- end of serving -->\nbelow"
    )
    serving_section.main(str(tmp_path / "serving.json"), str(page))
    assert page.read_text() == (
        f"above\n<!-- serving: written -->\n\n{section}\n"
        "<!-- end of serving -->\nbelow"
    )


# All of it.


@pytest.fixture
def launch(benchmarks):
    with in_process.script("serving") as launch:
        yield launch


@pytest.fixture
def benchmark(launch):
    return sys.modules["serving"]


PROGRAM = """
import answering

def answer(texts):
    positive = [len(text) / 100 for text in texts]
    return ["negative"] * len(texts), [[1 - p, p] for p in positive]

answering.serve(answer, ["pytest"])
"""


@pytest.fixture
def program(tmp_path):
    return write_side(tmp_path, PROGRAM)


@pytest.fixture
def quick_sides(sides, benchmark, program, monkeypatch):
    """Sides that answer by the length of a text; there are no models."""
    monkeypatch.setattr(benchmark.Place, "make_models", mock.Mock())
    for name in ("ours", "compiled"):
        side = dataclasses.replace(sides.SIDES[name], program=program)
        monkeypatch.setitem(sides.SIDES, name, side)


def words(tmp_path, count=70, *more):
    """A command line, and 70 texts of 1 to 7 letters for it."""
    path = tmp_path / "texts.tsv"
    rows = [f"{n}\t{'a' * (n % 7 + 1)}" for n in range(count)]
    path.write_text("\n".join(["id\ttext", *rows]), encoding="utf-8")
    return [
        f"--data_file={path}",
        "--column=text",
        f"--init_checkpoint={tmp_path}",
        "--variants=ours,compiled",
        f"--peer_python={sys.executable}",
        f"--output={tmp_path / 'results.json'}",
        *more,
    ]


def test_sides_take_turns(
    launch, quick_sides, serving_comparison, tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("CXX", sys.executable)
    assert launch(words(tmp_path, 70, "--rounds=2")) == 0
    kept = serving_comparison.Comparison.read(tmp_path / "results.json")
    assert [(turn.side, turn.batch_size) for turn in kept.rounds] == [
        *(("ours", 32), ("compiled", 32), ("ours", 1), ("compiled", 1)),
        *(("compiled", 32), ("ours", 32), ("compiled", 1), ("ours", 1)),
    ]
    # Two full batches, and the same texts one by one.
    assert {turn.num_texts for turn in kept.rounds} == {64}
    assert kept.settings.num_texts == 64
    assert kept.agreement["compiled"].largest_difference == 0
    assert kept.versions["ours"] == {"pytest": pytest.__version__}
    output = capsys.readouterr().out
    assert "torch, compiled (float32), batches of 1: " in output
    assert "| bert_tf is times as fast as |" in output


def test_nothing_compiles_without_a_compiler(
    launch, quick_sides, serving_comparison, tmp_path, monkeypatch
):
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert launch(words(tmp_path, 70, "--rounds=1")) == 0
    kept = serving_comparison.Comparison.read(tmp_path / "results.json")
    assert kept.left_out == {"compiled": "there is no C++ compiler"}
    assert kept.sides == ["ours"]


@pytest.mark.parametrize(
    ("count", "more", "message"),
    [
        (31, "", "expected 32 texts or more. Received: 31"),
        (70, "--num_texts=13", "expected 32 texts or more. Received: 13"),
        (70, "--column=words", "expected --column among id, text. Received"),
        (70, "--data_file=/no/such/file", "; give --data_file"),
    ],
)
def test_texts_that_there_are_not(launch, tmp_path, count, more, message):
    assert message in launch(words(tmp_path, count, *more.split()))


def test_a_side_that_there_is_not(launch, tmp_path, capsys):
    assert launch(words(tmp_path, 70, "--variants=ours,theirs")) == 2
    assert "expected a comma list of some of ours" in capsys.readouterr().err


def answers(probability):
    """A side that says the same of every text."""

    def ask(batches):
        count = sum(map(len, batches))
        return {
            "labels": ["negative"] * count,
            "probabilities": [[0.5, 0.5]] * (count - 1) + [[0.5, probability]],
        }

    return mock.Mock(ask=ask)


def test_rounding_is_allowed(benchmark):
    given = {"ours": answers(0.5), "eager": answers(0.50009)}
    given["ours_bfloat16"] = answers(0.59)
    found = benchmark.compare(given, ["text"] * 32)
    assert [row.largest_difference for row in found.values()] == pytest.approx(
        [0.0, 0.00009, 0.09]
    )


@pytest.mark.parametrize(
    ("name", "probability"),
    [("eager", 0.50011), ("ours_bfloat16", 0.61), ("eager", float("nan"))],
)
def test_another_model_is_found_out(benchmark, name, probability):
    given = {"ours": answers(0.5), name: answers(probability)}
    with pytest.raises(SystemExit, match=f"probabilities of {name} that "):
        benchmark.compare(given, ["text"] * 32)


@pytest.mark.slow
def test_ours_for_real(serving_comparison, tmp_path):
    weights = tmp_path / "weights"
    weights.mkdir()
    huggingface.write(str(weights), pretrained("encoder"))
    arguments = words(tmp_path, 70, "--rounds=1", "--max_seq_length=17")
    done = subprocess.run(
        [
            *(sys.executable, str(BENCHMARKS / "serving.py"), *arguments),
            f"--init_checkpoint={weights}",
            "--variants=ours,ours_bfloat16",
        ],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "results.json").read_text(encoding="utf-8")
    kept = serving_comparison.Comparison.read(tmp_path / "results.json")
    assert [turn.side for turn in kept.rounds] == ["ours", "ours_bfloat16"] * 2
    assert 0 < kept.agreement["ours_bfloat16"].largest_difference < 0.1
    assert "tensorflow-text" in json.loads(text)["versions"]["ours"]
