"""The benchmarks: what they share, and a short run of each."""

import dataclasses
from unittest import mock

import numpy as np
import pytest

from bert_tf import BertConfig
from bert_tf.errors import InputError
from tests.checkpoints.small_models import CONFIG, pretrained

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def comparison(benchmarks):
    return benchmarks("comparison")


class Side:
    """Does the work three times in a second per letter of the request."""

    def __init__(self, name, asked):
        self.versions = {name: "1.0"}
        self._name, self._asked = name, asked

    def ask(self, request):
        self._asked.append(self._name)
        seconds = float(len(request))
        times = {"seconds": seconds, "cpu_seconds": 2 * seconds}
        return {**times, "times": 3, "request_cpu_seconds": 1e9, "share": 0.5}


def test_sides_take_turns(comparison, tmp_path):
    """Two rounds of two cases; the third side knows one of them."""
    titles = {"ours": "bert_tf", "theirs": "another", "third": "a third"}
    start = {"command": "python work.py", "machine": "A machine"}
    results = comparison.Comparison("Work", "MB/s", titles, ["A fact"], **start)
    asked = []
    sides = {name: Side(name, asked) for name in titles}
    requests = {"ours": "a", "theirs": "bb"}
    cases = [
        comparison.Case("short", 6.0, requests),
        comparison.Case("long", 60.0, {**requests, "third": "ccc"}),
    ]
    output = str(tmp_path / "new" / "results.json")
    config = comparison.BenchmarkOptions(rounds=2, output=output)
    comparison.take_turns(results, cases, sides, config)
    assert asked == [
        *("ours", "theirs"),
        *("ours", "theirs", "third"),
        *("theirs", "ours"),
        *("theirs", "third", "ours"),
    ]
    assert comparison.Comparison.read(output) == results
    text = comparison.section(results)
    assert text.startswith("## Work\n\n```sh\npython work.py\n```\n")
    for line in (
        "- Medians (least to most) of 2 rounds, 2 undisturbed",
        "| short | 18.0; 50% | 9.00; 50%; **2.00** |  |",
        "| long | 180; 50% | 90.0; 50%; **2.00** | 60.0; 50%; **3.00** |",
    ):
        assert f"\n{line}\n" in text


def test_only_the_section_of_a_page_is_replaced(comparison, tmp_path):
    page = tmp_path / "page.md"
    text = "Above\n<!-- {0}: by a program -->\n{1}<!-- end of {0} -->\nBelow\n"
    page.write_text(text.format("size", "") + text.format("speed", "\n1\n\n"))
    for _ in range(2):
        comparison.publish("\n| 13 \\1 |\n\n", str(page), "size")
    assert page.read_text() == (
        text.format("size", "\n| 13 \\1 |\n\n")
        + text.format("speed", "\n1\n\n")
    )
    with pytest.raises(InputError, match="expected one section"):
        comparison.publish("13 MB", str(page), "other")


def test_input_pipeline(benchmarks, comparison, monkeypatch, capsys):
    program = benchmarks("input_pipeline")
    monkeypatch.setattr(program, "WARM_UP", 1)
    monkeypatch.setitem(program.SETUP, "batch_size", 50)
    config = comparison.BenchmarkOptions(rounds=1, least_seconds=0.01)
    [turn] = program.run(config).turns
    assert turn["rate"] > 0
    assert "## Input pipeline" in capsys.readouterr().out


def test_prediction(benchmarks, tmp_path):
    """Our side of one kind: loaded, asked, and as a whole process."""
    from bert_tf.checkpoints import huggingface

    prediction = benchmarks("prediction")
    config = dataclasses.replace(CONFIG, max_position_embeddings=128)
    huggingface.write(str(tmp_path), pretrained("encoder", config))
    texts = prediction.KINDS["classification"].num_texts
    kind = dataclasses.replace(
        prediction.KINDS["classification"], texts=lambda: ["a b", "b"] * texts
    )
    options = {"kinds": ("classification",), "variants": ("ours",)}
    options |= {"init_checkpoint": str(tmp_path), "share": 0.01, "rounds": 1}
    with mock.patch.dict(prediction.KINDS, classification=kind):
        found = prediction.run(prediction.PredictionConfig(**options))
    assert [turn["case"] for turn in found.turns] == [
        f"TextClassifier, {title}"
        for title in ("30 texts", "one at a time", "load and answer one text")
    ]
    assert all(turn["peak_bytes"] > 0 for turn in found.turns)


def test_corpus_engines(benchmarks, tmp_path):
    """Later runs add their sides to the results and the page."""
    program = benchmarks("corpus_engines")
    page = tmp_path / "page.md"
    page.write_text("<!-- engines: -->\n<!-- end of engines -->\n")
    config = program.CorpusEnginesConfig(
        sides=("local",),
        megabytes=("0.05",),
        vocab_size=200,
        page=str(page),
        output=str(tmp_path / "rows.json"),
    )
    program.run(config)
    first, second = program.run(config)
    assert first["sha256"] == second["sha256"]
    assert sum(first["cpu_seconds"].values()) > 0.1
    assert 10 < first["mebibytes"]["all"] < 2000
    assert page.read_text().count("| 0 MB | one machine |") == 2


# The comparison of runs on several devices: test_several_workers.py runs it.


def checkpoint(weights=(1.0, -2.0), v=(0.25, 0.01), step=30, **more):
    tensors = {"bert/kernel": weights, "bert/kernel/adam_v": v}
    tensors["bert/kernel/adam_m"] = (0.5, 0.1)
    arrays = {name: np.float32(values) for name, values in tensors.items()}
    return {**arrays, "global_step": np.int64(step), **more}


def test_differences_of_checkpoints(benchmarks):
    equality = benchmarks("equality")
    assert equality.difference(checkpoint(), checkpoint()) == (0.0, 0.0)
    changed = checkpoint((1.25, -2.5), (0.25, 0.135))
    found = equality.difference(changed, checkpoint())
    assert found == pytest.approx((0.5, 0.5))
    assert str(found) == "5.0e-01, 5.0e-01"
    found = equality.difference(checkpoint((np.nan, -2.0)), checkpoint())
    assert not found.weights < 1
    for other in (checkpoint(step=29), checkpoint(more=np.zeros(1))):
        with pytest.raises(ValueError, match="tensors or steps"):
            equality.difference(other, checkpoint())


def test_workers_read_each_example_once(benchmarks, tmp_path):
    equality = benchmarks("equality")
    flags = benchmarks("small_tasks").write_pretraining(tmp_path)
    assert [*equality.share_rows(flags)][1:] == [
        ["2", "16 + 15", "3 + 2"],
        ["3", "11 + 10 + 10", "2 + 2 + 1"],
        ["4", "8 + 8 + 8 + 7", "2 + 1 + 1 + 1"],
    ]
    with pytest.raises(ValueError, match="3 examples are not read once"):
        equality.each_once([[b"a", b"b"], [b"c", b"a"]], [b"a", b"b", b"c"])


def test_the_checks_of_a_gpu_succeed_on_the_cpu(
    benchmarks, monkeypatch, capsys
):
    gpu_check = benchmarks("gpu_check")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    gpu_check.run(gpu_check.GpuCheckConfig(cpu=True))
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == [
        *("pre-training", "resume", "bfloat16", "float16"),
        *("fine-tuning and export", "text model", "two processes"),
    ]
    assert all(": ok: " in line for line in lines)


def test_the_memory_of_a_step_is_near_the_compilers(benchmarks):
    """The number is the TPU compiler's; `make tpu` reports it."""
    program = benchmarks("gpu_memory")
    config = BertConfig.from_name("base", vocab_size=program.VOCAB_SIZE)
    needed = program.step_bytes(config, 512, 64, True, True)
    assert sum(needed) / 2**30 == pytest.approx(22.68, rel=0.12)
