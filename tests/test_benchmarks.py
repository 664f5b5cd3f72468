"""The benchmarks: what they share, and a short run of each."""

import dataclasses
import json
import os
import subprocess
import sys
import time
from unittest import mock

import numpy as np
import pytest
from benchmark_modules import PEERS, importable
from checkout import ROOT

from bert_tf import BertConfig
from bert_tf.errors import InputError
from tests.interop.small_models import CONFIG, pretrained


@pytest.fixture(scope="module")
def comparison(benchmarks):
    return benchmarks("comparison")


@pytest.fixture(scope="module")
def sides(benchmarks):
    return benchmarks("sides")


@pytest.fixture(scope="module")
def side():
    """The module that all peers import."""
    with importable(PEERS) as module_of:
        yield module_of("side")


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
        "|  | side | rounds (timed) | MB/s | % of peak | speed-up of bert_tf |",
        "| short | bert_tf | 2 (2) | 18.0 | 50% |  |",
        "| short | another | 2 (2) | 9.00 | 50% | 2.00 |",
        "| long | a third | 2 (2) | 60.0 | 50% | 3.00 |",
    ):
        assert f"\n{line}\n" in text


def test_disturbed_rounds_count_only_without_others(comparison, results):
    results.unit = "s"
    results.turns = [
        {
            "case": "short",
            "side": side,
            "rate": 1 / seconds,
            "seconds": seconds,
            "other_cpu_seconds": others,
            "peak_bytes": seconds * 2**20,
        }
        for side, seconds, others in (
            ("ours", 2.0, 0.0),
            ("ours", 4.0, 0.4),
            ("ours", 9.0, 1.0),
            ("theirs", 1.5, 9.0),
        )
    ]
    text = comparison.section(results)
    ours = "| 3 (2) | 3.00 (2.00 to 4.00) | 4 (2 to 9) |  |"
    assert f"| short | bert_tf {ours}" in text
    ratio = np.median([1 / 2, 1 / 4]) * 1.5
    assert f"| short | another | 1 (0) | 1.50 | 2 | {ratio:.2f} |" in text


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


def test_pages_have_the_sections_of_all_programs(benchmarks):
    pages = {
        path.stem: path.read_text(encoding="utf-8")
        for path in (ROOT / "docs" / "reports").glob("*.md")
    }
    sections = {
        *(("performance", n) for n in ("training_step", "gpu", "serving")),
        *(("performance", n) for n in ("start", "tokenization", "triton")),
        *(("performance", n) for n in ("data_creation", "input_pipeline")),
        ("performance", "prediction"),
        *(("performance", n) for n in ("corpus", "packing")),
        *(("equalities", "equalities"), ("faults", "faults")),
        *(("tpu_memory", "tpu"), ("results", "fine_tuning")),
    }
    for page, name in sections:
        assert pages[page].count(f"\n<!-- {name}: ") == 1
        assert pages[page].count(f"\n<!-- end of {name} -->\n") == 1


# Commands and processes.


def test_usage_of_a_command(sides, tmp_path):
    """200 MiB, held by a process of the command."""
    inner = "import time; held = b'1' * (200 << 20); time.sleep(0.3)"
    program = (
        "import os, subprocess, sys; print(os.environ['HF_HUB_OFFLINE']); "
        f"subprocess.run([sys.executable, '-c', {inner!r}])"
    )
    usage = sides.run_command([sys.executable, "-c", program], tmp_path)
    assert (tmp_path / "stdout").read_text() == "1\n"
    assert 0.3 < usage["seconds"] < 60
    assert 0 < usage["cpu_seconds"] < 60
    assert 200 << 20 < usage["peak_bytes"] < 1 << 30


def test_a_stopped_benchmark_stops_its_command(sides, tmp_path, monkeypatch):
    seen = []

    def stop(session):
        seen.append(session)
        raise KeyboardInterrupt

    monkeypatch.setattr(sides, "resident_bytes", stop)
    program = "import time; time.sleep(600)"
    with pytest.raises(KeyboardInterrupt):
        sides.run_command([sys.executable, "-c", program], tmp_path)
    with pytest.raises(ProcessLookupError):
        os.kill(seen[0], 0)


def test_a_failed_command_prints_the_end_of_its_log(sides, tmp_path, capsys):
    program = "import sys; print('x' * 9999 + 'why', file=sys.stderr); 1/0"
    with pytest.raises(InputError, match="failed with exit status 1"):
        sides.run_command([sys.executable, "-c", program], tmp_path)
    said = capsys.readouterr().err
    assert "xwhy" in said
    assert "ZeroDivisionError" in said
    assert len(said) < 3000


PROGRAM = """
import sys
sys.path.insert(0, {folder!r})
import side

def start(setup):
    def reply(request):
        if request == "fail":
            sys.exit("what was wrong")
        print("a library prints")
        return {{"double": setup["factor"] * request}}
    return reply

side.serve(start, ["pytest"])
"""


def test_a_side_that_is_a_process(sides, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(sides, "PEERS", tmp_path)
    program = PROGRAM.format(folder=str(PEERS))
    (tmp_path / "program.py").write_text(program)
    setup = {"factor": 2, "num_threads": 1}
    programs = {"one": (sys.executable, "program.py", setup)}
    with sides.started(programs) as found:
        one = found["one"]
        assert one.versions == {"pytest": pytest.__version__}
        reply = one.ask(21)
        assert reply.pop("request_cpu_seconds") >= 0
        assert reply == {"double": 42}
        with pytest.raises(InputError, match="failed with exit status 1"):
            one.ask("fail")
    assert "what was wrong" in capfd.readouterr().err


def test_an_environment_is_created_once(sides, tmp_path, monkeypatch):
    monkeypatch.setattr(sides, "ROOT", tmp_path)
    monkeypatch.setattr(sides, "PEERS", tmp_path)
    monkeypatch.setattr(sides.venv, "create", mock.Mock())
    folder = tmp_path / ".venv-peer-x"
    install = mock.Mock(
        side_effect=lambda *_, **__: folder.mkdir(exist_ok=True)
    )
    monkeypatch.setattr(sides.subprocess, "run", install)
    packages = tmp_path / "x.txt"
    packages.write_text("a\n")
    assert sides.peer_python(("y=other", "x=given"), "x") == "given"
    assert not install.called
    for _ in range(2):
        python = sides.peer_python((), "x")
        assert python == str(folder / "bin" / "python")
    assert install.call_count == 1
    later = packages.stat().st_mtime + 5
    os.utime(packages, (later, later))
    sides.peer_python((), "x")
    assert install.call_count == 2


def test_the_machine(sides, tmp_path):
    stat = tmp_path / "stat"
    stat.write_text("cpu  100 20 300 9999 8888 1 2 77 60 0\ncpu0 1 2 3\n")
    assert sides.busy_seconds(stat) == 500 / os.sysconf("SC_CLK_TCK")
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(
        "processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\n"
        "flags\t\t: fpu avx2 avx512f avx512_bf16\n\n"
    )
    assert sides.processor(cpuinfo) == "Some CPU @ 2 GHz, AVX-512"


@pytest.mark.parametrize("name", ["fault_section", "layouts"])
def test_help(name):
    """Programs without absl's flags; argparse ends --help with status 0."""
    program = ROOT / "benchmarks" / f"{name}.py"
    done = subprocess.run(
        [sys.executable, program, "--help"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.stdout.startswith(f"usage: {name}.py")


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


SETUP = {
    "config": {"vocab_size": 50},
    "batch_size": 150,
    "max_seq_length": 13,
    "max_predictions_per_seq": 2,
    "matrix_size": 10,
    "products": 3,
    "flops": 6000.0,
}


def test_batches_are_random_words(side):
    made = side.batch_of(SETUP)
    assert set(made["input_ids"].flat) == set(range(50))
    positions = made["masked_lm_positions"]
    assert set(positions.flat) == set(range(13))
    assert (positions[:, 0] != positions[:, 1]).all()
    again, other = side.batch_of(SETUP), side.batch_of(SETUP, seed=1)
    for name, value in made.items():
        is_weight = name == "masked_lm_weights"
        assert value.dtype == ("float32" if is_weight else "int32")
        np.testing.assert_array_equal(again[name], value)
    assert (other["input_ids"] != made["input_ids"]).any()


def test_share_of_the_peak(side):
    """A step takes twice as long as a product, and has as many FLOPs."""
    work = lambda: time.sleep(0.02), lambda: time.sleep(0.01)
    reply = side.measure(work, SETUP, 0.0)
    assert reply["times"] == 2
    assert reply["peak_flops"] == pytest.approx(6000 / 0.01, rel=0.5)
    assert reply["share"] == pytest.approx(0.5, rel=0.5)


# Short runs.


def test_input_pipeline(benchmarks, comparison, monkeypatch, capsys):
    program = benchmarks("input_pipeline")
    monkeypatch.setattr(program, "WARM_UP", 1)
    monkeypatch.setitem(program.SETUP, "batch_size", 50)
    config = comparison.BenchmarkOptions(rounds=1, least_seconds=0.01)
    [turn] = program.run(config).turns
    assert turn["rate"] > 0
    assert "## Input pipeline" in capsys.readouterr().out


def test_commands_are_measured(benchmarks, comparison, monkeypatch, tmp_path):
    """start.py and data_creation.py, whose commands are not run."""
    asked = []

    def run_command(words, folder):
        asked.append(words[1:])
        return {"seconds": 1.0, "cpu_seconds": 1.0}

    monkeypatch.setattr(benchmarks("sides"), "run_command", run_command)
    program = benchmarks("start")
    program.run(comparison.BenchmarkOptions(rounds=1))
    assert asked.count(["-c", "import tensorflow"]) == 3
    assert [str(ROOT / "run_classifier.py"), "--help"] in asked
    asked.clear()
    program = benchmarks("data_creation")
    monkeypatch.setattr(program, "_count", lambda folder: 7)
    monkeypatch.setattr(program.sides, "versions_of", lambda *_: {})
    (tmp_path / "a.txt").write_text("text\n")
    config = program.DataCreationConfig(
        input_file=str(tmp_path / "a.txt"),
        vocab_file="v",
        rounds=1,
        pythons=("tf-models-official=python",),
    )
    assert [turn["rate"] for turn in program.run(config).turns] == [7.0, 7.0]
    ours, theirs = asked
    assert ours[0].endswith("create_pretraining_data.py")
    assert theirs[:2] == ["-m", program.PEER_MODULE]
    assert ours[4:] == theirs[4:] == ["--vocab_file=v", "--dupe_factor=10"]


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


@pytest.mark.slow
def test_exports_asked_by_several_clients(benchmarks, tmp_path):
    """Without the server, which is not a dependency of the project."""
    triton = benchmarks("triton")
    question = {"question": "Who ran?"}
    paragraph = {"context": "Bob ran.", "qas": [question] * 32}
    path = tmp_path / "squad.json"
    path.write_text(json.dumps({"data": [{"paragraphs": [paragraph]}]}))
    found = triton.run(
        triton.TritonConfig(
            data_file=str(path),
            variants=("saved_model",),
            pythons=(f"triton={sys.executable}",),
            rounds=1,
        )
    )
    assert [turn["case"] for turn in found.turns] == [
        f"{model}, clients: {clients}"
        for model in ("classifier", "questions")
        for clients in triton.CLIENTS
    ]
    assert all(turn["median_seconds"] > 0 for turn in found.turns)


@pytest.mark.slow
def test_prediction(benchmarks, tmp_path):
    """Our side of one kind: loaded, asked, and as a whole process."""
    from bert_tf.interop import huggingface

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


@pytest.mark.slow
def test_serving(benchmarks, tmp_path, capsys):
    """Both of our precisions, exported and loaded."""
    from bert_tf.interop import huggingface

    serving = benchmarks("serving")
    weights = tmp_path / "weights"
    weights.mkdir()
    config = dataclasses.replace(
        CONFIG, max_position_embeddings=serving.MAX_SEQ_LENGTH
    )
    huggingface.write(str(weights), pretrained("encoder", config))
    path = tmp_path / "texts.tsv"
    path.write_text("sentence\n" + "a b\n" * 33)
    found = serving.run(
        serving.ServingConfig(
            data_file=path,
            init_checkpoint=weights,
            variants=("ours",),
            rounds=1,
        )
    )
    assert [turn["case"] for turn in found.turns] == [
        f"{title}, {precision}"
        for precision in ("float32", "bfloat16")
        for title in (
            *("batches of 32", "one text at a time"),
            "one long text at a time",
        )
    ]
    assert "tensorflow-text" in found.versions["ours"]


def test_corpus_scale(benchmarks, tmp_path):
    program = benchmarks("corpus_scale")
    page = tmp_path / "page.md"
    page.write_text("<!-- corpus: -->\n<!-- end of corpus -->\n")
    config = program.CorpusScaleConfig(
        megabytes=("0.001", "0.003"),
        dupe_factor=1,
        num_workers=1,
        vocab_size=100,
        page=str(page),
        picture=str(tmp_path / "plot.png"),
    )
    rows = program.run(config)
    assert [row.megabytes > 0.001 for row in rows] == [True, True]
    assert all(row.instances > 0 for row in rows)
    made = [
        program.Row(5.0, 7, 11, 100.0, 2.0),
        program.Row(50.0, 70, 110, 110.0, 18.0),
    ]
    assert "of the text](plot.png)" in page.read_text()
    assert (tmp_path / "plot.png").exists()
    text = program.section(config, made)
    assert "| 50 MB | 70 | 110 | 110 MiB | 18.0 s |" in text
    assert "10 times the text takes 1.10 times the memory and 9.0 times" in text


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


WIKITEXT = """\x20
 = First = \x20

 Alpha beta . Gamma 3.5 @-@ delta ! Epsilon ?\x20
 Zeta = eta .\x20

 = = Part of it = =\x20
 Theta . Iota .\x20
 = = = Alone = = =\x20
 One sentence .\x20

 = Second =\x20
 Kappa . Lambda .\x20
"""


def test_documents_of_wikitext(benchmarks, tmp_path):
    program = benchmarks("sequence_packing")
    path = tmp_path / "wiki.raw"
    path.write_text(WIKITEXT)
    sections = [
        ["Alpha beta .", "Gamma 3.5 @-@ delta !", "Epsilon ?", "Zeta = eta ."],
        ["Theta .", "Iota ."],
        ["Kappa .", "Lambda ."],
    ]
    assert program.documents(path, "sections") == sections
    first, part, second = sections
    articles = [[*first, *part, "One sentence ."], second]
    assert program.documents(path, "articles") == articles


def test_the_section_of_faults(benchmarks, tmp_path):
    rows, page = tmp_path / "rows.json", tmp_path / "page.md"
    row = {"broken": "a | disk", "happened": "one line", "difference": 0.0}
    rows.write_text(json.dumps([{**row, "node": "tests/test_x.py::test_y"}]))
    page.write_text("<!-- faults: here -->\n<!-- end of faults -->\n")
    benchmarks("fault_section").main(str(rows), str(page))
    line = "| a \\| disk | one line | 0 | `tests/test_x.py::test_y` |"
    assert f"\n{line}\n" in page.read_text()


# Fine-tuning.


@pytest.fixture
def config(benchmarks, tmp_path):
    return benchmarks("fine_tuning").FineTuningConfig(
        task_name="mrpc",
        data_dir=str(tmp_path),
        init_checkpoint="/weights/small/model",
        learning_rate=3e-4,
        rounds=2,
        variants=("ours", "huggingface", "ours_static"),
        pythons=("huggingface=python",),
        output=str(tmp_path / "results.json"),
    )


def test_sides_fine_tune_in_turn(
    benchmarks, config, monkeypatch, tmp_path, capsys
):
    """Commands that are not run; a stopped benchmark resumes."""
    program, started = benchmarks("fine_tuning"), []

    def run_command(command, folder):
        started.append(command[1:])
        (folder / "model").mkdir()
        scores = {"eval_accuracy": 0.5, "eval_f1": 0.25, "eval_loss": 0.75}
        usage = {"global_step": 343, "train_seconds": 12.5}
        results = folder / "model" / "eval_results.json"
        results.write_text(json.dumps({**scores, **usage}))
        said = {
            **usage,
            "labels": [1, 1, 0, 0],
            "predictions": [1, 0, 0, 1],
            "versions": {"torch": "2.13"},
        }
        (folder / "stdout").write_text("{'a': 'log'}\n" + json.dumps(said))
        return {"seconds": 2.0, "cpu_seconds": 1.0, "peak_bytes": 2**20}

    monkeypatch.setattr(program.sides, "run_command", run_command)
    monkeypatch.setattr(program, "cross_check", lambda *_: "Both: equal")
    program.run(config)
    text = capsys.readouterr().out
    assert "- Both: equal\n" in text
    assert "static padding | bert_tf | 2 (2) | 2.00 | 50.0 | 25.0 |" in text
    every = (
        "| Hugging Face Trainer | 2 | 50.0 | 50.0 | 12 | 1 | 2 | 1 | 0 | 343 |"
    )
    assert every in text
    ours, theirs, static, *second = started
    assert [words[0].rpartition("/")[2] for words in second] == [
        "huggingface_trainer.py",
        *["run_classifier.py"] * 2,
    ]
    setup = json.loads(theirs[1])
    assert setup.pop("num_threads") > 0
    same = {f"--{name}={value}" for name, value in setup.items()}
    output = {word for word in same if "output_dir" in word}
    assert same - output <= {*ours}
    assert "--padding=auto" in ours
    assert "--padding=max_length" in static
    count = len(started)
    program.run(config)
    assert len(started) == count
    page = tmp_path / "page.md"
    page.write_text("<!-- fine_tuning: x -->\n<!-- end of fine_tuning -->\n")
    results = (config.output, config.output)
    program.run(program.FineTuningConfig(results=results, page=str(page)))
    assert page.read_text().count("\n## MRPC: batches by length") == 2
    other = {**vars(config), "learning_rate": 1.0}
    with pytest.raises(InputError, match="results of other settings"):
        program.run(program.FineTuningConfig(**other))


# The check of a GPU.


@pytest.fixture
def gpu_check(benchmarks):
    return benchmarks("gpu_check")


def test_without_a_gpu_nothing_is_checked(gpu_check, monkeypatch, capsys):
    monkeypatch.setattr(gpu_check, "python", lambda *_: "0")
    gpu_check.run(gpu_check.GpuCheckConfig())
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1
    assert "finds no GPU here, so nothing was checked" in lines[0]


def test_every_check_runs_after_a_failure(gpu_check, monkeypatch, capsys):
    """With one GPU, two processes are skipped: NCCL refuses to share it."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setattr(gpu_check, "python", lambda *_: "1")

    def fails(*_, **__):
        raise InputError("It broke.")

    monkeypatch.setattr(gpu_check.layouts, "run", fails)
    with pytest.raises(InputError, match="failed: pre-training, resume, bfl"):
        gpu_check.run(gpu_check.GpuCheckConfig())
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "pre-training: FAILED: It broke."
    assert lines[-2:] == [
        "text model: ok: 1",
        "two processes: skipped, since two GPUs are needed",
    ]


def test_workers_see_their_gpus(layouts, tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import os; print(os.environ['CUDA_VISIBLE_DEVICES'])")
    layout = layouts.LAYOUTS["two_workers"]
    layouts.run(layout, script, {}, tmp_path / "run", gpus=["3", "5"])
    for worker, gpu in enumerate("35"):
        log = tmp_path / "run" / f"worker{worker}.log"
        assert log.read_text() == f"{gpu}\n"


@pytest.mark.slow
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
    """The last number is a row of docs/reports/tpu_memory.md."""
    program = benchmarks("gpu_memory")
    config = BertConfig.from_name(model, vocab_size=program.VOCAB_SIZE)
    needed = program.step_bytes(
        config, length, batch, True, task == "pretraining"
    )
    assert sum(needed) / 2**30 == pytest.approx(gib, rel=0.12)


def test_the_largest_batch_fits(benchmarks):
    program = benchmarks("gpu_memory")
    config = BertConfig.from_name("base", vocab_size=program.VOCAB_SIZE)
    for is_half in (True, False):
        batch = program.largest_batch(config, 128, 16, is_half=is_half)
        limit = 16 * 2**30 * program.USABLE
        most = [
            sum(program.step_bytes(config, 128, size, is_half))
            for size in (batch, batch + 8)
        ]
        assert batch % 8 == 0
        assert most[0] <= limit < most[1]
    large = BertConfig.from_name("large", vocab_size=program.VOCAB_SIZE)
    assert program.largest_batch(large, 512, 1, is_half=True) == 0
    table = [*program.rows()]
    assert len({len(row) for row in table}) == 1
