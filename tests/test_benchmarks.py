"""The benchmarks: what they share, and a short run of each."""

import dataclasses
from unittest import mock

import pytest

from bert_tf import BertConfig
from bert_tf.errors import InputError
from tests.checkpoints.small_models import CONFIG, pretrained

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def comparison(benchmarks):
    return benchmarks("comparison")


# Turns and tables.


class Side:
    """Does the work three times in a second per letter of the request."""

    def __init__(self, name, asked):
        self.versions = {name: "1.0"}
        self._name, self._asked = name, asked

    def ask(self, request):
        self._asked.append(self._name)
        return {
            "times": 3,
            "seconds": float(len(request)),
            "cpu_seconds": 2.0 * len(request),
            "request_cpu_seconds": 1e9,
            "share": 0.5,
        }


@pytest.fixture
def results(comparison):
    titles = {"ours": "bert_tf", "theirs": "another", "third": "a third"}
    return comparison.Comparison(
        "Work",
        "MB/s",
        titles,
        ["A fact"],
        command="python work.py",
        machine="A machine",
    )


def test_sides_take_turns(comparison, results, tmp_path):
    """Two rounds of two cases; the third side knows one of them."""
    asked = []
    sides = {name: Side(name, asked) for name in results.titles}
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
    assert text.startswith(
        "## Work\n\n```sh\npython work.py\n```\n\n- A machine\n- A fact\n"
    )
    assert "- ours 1.0, theirs 1.0, third 1.0\n" in text
    for line in (
        "- Medians (least to most) of 2 rounds, 2 undisturbed",
        "| MB/s; % of peak; **speed-up of bert_tf** | bert_tf | another "
        "| a third |",
        "| short | 18.0; 50% | 9.00; 50%; **2.00** |  |",
        "| long | 180; 50% | 90.0; 50%; **2.00** | 60.0; 50%; **3.00** |",
    ):
        assert f"\n{line}\n" in text


PAGE = """# Title

<!-- speed: a program writes this section -->
<!-- end of speed -->

<!-- size: a program writes this section -->

12 MB \\1

<!-- end of size -->
Below.
"""


def test_only_the_section_of_a_page_is_replaced(comparison, tmp_path):
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    comparison.publish("\n| 13 \\1 |\n\n", str(page), "size")
    expected = PAGE.replace("12 MB", "| 13").replace("\\1\n", "\\1 |\n")
    assert page.read_text() == expected
    for _ in range(2):
        comparison.publish("fast", str(page), "speed")
    start = "section -->\n<!-- end of speed"
    filled = "section -->\n\nfast\n\n<!-- end of speed"
    assert page.read_text() == expected.replace(start, filled)
    for content in ("", PAGE + PAGE, "<!-- size: -->"):
        page.write_text(content)
        with pytest.raises(InputError, match="expected one section"):
            comparison.publish("13 MB", str(page), "size")
        assert page.read_text() == content


# Steps.


def test_flops_of_a_step_are_those_of_its_products(benchmarks):
    """Three times the forward pass; each weight is used for every token."""
    program = benchmarks("training_step")
    block = 4 * 768**2 + 2 * 768 * 3072  # weights
    attention = 2 * 128 * 768  # for a token: scores and context
    head = 768**2 + 768 * 30522  # for a masked word
    forward = 12 * 256 * (block + attention) + 2 * 768**2
    work = program.workload("base", 2, 128)
    assert work["flops"] == 3 * 2 * (forward + 2 * 19 * head)
    assert BertConfig(**work["config"]).num_hidden_layers == 12


# Short runs.


def test_input_pipeline(benchmarks, comparison, monkeypatch, capsys):
    program = benchmarks("input_pipeline")
    monkeypatch.setattr(program, "WARM_UP", 1)
    monkeypatch.setitem(program.SETUP, "batch_size", 50)
    config = comparison.BenchmarkOptions(rounds=1, least_seconds=0.01)
    [turn] = program.run(config).turns
    assert turn["rate"] > 0
    assert "## Input pipeline" in capsys.readouterr().out


def test_our_ids_are_the_originals(benchmarks, tmp_path):
    program = benchmarks("tokenization")
    mixed = program.mix(["a", "b"], ["가", "나", "다"], ["word", "##s"])
    words = " ".join(["word"] * 12)
    assert mixed == ["a", "가", words, "b", "나", words]
    (tmp_path / "t").write_text("x\ny\n")
    text = program.Text("English", tmp_path / "t", tmp_path / "v", True)

    def answers(*lines):
        return mock.Mock(ask=lambda request: {"lines": [*lines]})

    sides = {"ours": answers("1", "2"), "huggingface": answers("1", "3")}
    fact = program.compare(text, {**sides, "original": answers("1", "2")})
    assert fact.endswith("differ for 1 lines")
    with pytest.raises(InputError, match="different ids for 1 lines"):
        program.compare(text, {**sides, "original": answers("2", "2")})


def test_all_sides_serve_one_model(benchmarks):
    serving = benchmarks("serving")

    def answers(probability):
        def ask(request):
            count = sum(map(len, request["batches"]))
            rows = [[0.5, 0.5]] * (count - 1) + [[0.5, probability]]
            return {"labels": ["negative"] * count, "probabilities": rows}

        return mock.Mock(ask=ask)

    given = {"ours": answers(0.5), "eager": answers(0.50009)}
    assert serving.compare(given, ["text"] * 32, "float32") == [
        "torch (float32): probabilities differ from ours by at most 9e-05, "
        "labels of 0 texts differ"
    ]
    for probability in (0.50011, float("nan")):
        given["eager"] = answers(probability)
        with pytest.raises(InputError, match="probabilities of eager"):
            serving.compare(given, ["text"] * 32, "float32")


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
    with mock.patch.dict(prediction.KINDS, classification=kind):
        found = prediction.run(
            prediction.PredictionConfig(
                init_checkpoint=str(tmp_path),
                kinds=("classification",),
                variants=("ours",),
                share=0.01,
                rounds=1,
            )
        )
    assert [turn["case"] for turn in found.turns] == [
        f"TextClassifier, {title}"
        for title in (
            *("30 texts", "one at a time"),
            "load and answer one text",
        )
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
    sizes = {"all": 900.0, "Java of the executors": 600.0}
    sizes["Python of the executors"] = 200.0
    row = {**first, "side": "spark", "megabytes": 50.0, "mebibytes": sizes}
    row["cpu_seconds"] = {"Python": 1.0, "Java of the driver": 20.0}
    row["cpu_seconds"]["Python of the executors"] = 30.0
    assert "| 50 MB | Spark |" in program.section([row])
    assert "| 51 s | 21 s | 900 MiB | 300 + 100 |" in program.section([row])


# The check of a GPU.


@pytest.fixture
def gpu_check(benchmarks):
    return benchmarks("gpu_check")


def test_the_checks_of_a_gpu_succeed_on_the_cpu(gpu_check, monkeypatch, capsys):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    gpu_check.run(gpu_check.GpuCheckConfig(cpu=True))
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == [
        *("pre-training", "resume", "bfloat16", "float16"),
        *("fine-tuning and export", "text model", "two processes"),
    ]
    assert all(": ok: " in line for line in lines)


@pytest.mark.parametrize(
    ("task", "model", "length", "batch", "gib"),
    [
        ("classification", "base", 128, 256, 12.58),
        ("classification", "large", 512, 16, 17.42),
        ("pretraining", "base", 512, 64, 22.68),
        ("pretraining", "large", 128, 512, 73.32),
    ],
)
def test_the_memory_of_a_step_is_near_the_compilers(
    benchmarks, task, model, length, batch, gib
):
    """The last number is the TPU compiler's; `make tpu` reports it."""
    program = benchmarks("gpu_memory")
    config = BertConfig.from_name(model, vocab_size=program.VOCAB_SIZE)
    needed = program.step_bytes(
        config, length, batch, True, task == "pretraining"
    )
    assert sum(needed) / 2**30 == pytest.approx(gib, rel=0.12)
