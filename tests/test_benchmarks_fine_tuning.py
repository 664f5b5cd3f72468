"""The benchmark of fine-tuning: what it runs, and what it is told."""

import dataclasses
import json
import os
import pathlib
import random
import subprocess
import sys
from unittest import mock

import numpy as np
import pytest
from benchmark_modules import BENCHMARKS, PEERS, importable
from checkout import ROOT

from bert_tf.interop import huggingface
from bert_tf.tasks.questions import Answer, Question
from tests import in_process, squad_files
from tests.interop.small_models import pretrained


@pytest.fixture(scope="module")
def comparison(benchmarks):
    return benchmarks("comparison")


@pytest.fixture(scope="module")
def sides(benchmarks):
    return benchmarks("sides")


@pytest.fixture(scope="module")
def measured(benchmarks):
    return benchmarks("measured")


@pytest.fixture(scope="module")
def peer():
    """The peer's program; what it imports is not installed here."""
    with importable(PEERS, absent=("torch", "transformers")) as module_of:
        yield module_of("huggingface_trainer")


@pytest.fixture
def settings(comparison):
    return comparison.Settings("mrpc", "/data/MRPC", "/weights/small/model")


# What is run.


def test_our_command(sides, settings, tmp_path):
    script, *words = sides.SIDES["ours"].arguments(settings, 7, tmp_path)
    assert script == str(ROOT / "run_classifier.py")
    assert {
        "--task_name=mrpc",
        "--data_dir=/data/MRPC",
        "--init_checkpoint=/weights/small/model",
        f"--output_dir={tmp_path}/model",
        "--random_seed=7",
        "--padding=auto",
        "--do_train",
        "--do_eval",
    } <= set(words)
    assert not any(word.startswith("--num_threads") for word in words)
    static = sides.SIDES["ours_static"].arguments(settings, 7, tmp_path)
    assert set(static[1:]) ^ set(words) == {
        "--padding=auto",
        "--padding=max_length",
    }


def test_an_evaluation_trains_nothing(sides, settings, tmp_path):
    words = sides.evaluation_arguments(settings, tmp_path)
    assert "--do_eval" in words
    assert "--do_train" not in words


def test_the_peer_understands_its_command(
    sides, peer, settings, tmp_path, monkeypatch
):
    """Every flag of the settings, with the value of the settings."""
    odd = dataclasses.replace(
        settings,
        max_seq_length=61,
        train_batch_size=17,
        eval_batch_size=5,
        learning_rate=3e-4,
        num_train_epochs=0.5,
        num_threads=3,
    )
    words = sides.SIDES["huggingface"].arguments(odd, 11, tmp_path)
    monkeypatch.setattr(sys, "argv", words)
    arguments = vars(peer.parse_arguments())
    assert arguments.pop("data_dir") == pathlib.Path(odd.data_dir)
    assert arguments["output_dir"] == f"{tmp_path}/model"
    assert arguments["random_seed"] == 11
    expected = dataclasses.asdict(odd)
    del expected["data_dir"], expected["train_file"], expected["dev_file"]
    assert {name: arguments[name] for name in expected} == expected


@pytest.fixture
def squad(comparison):
    return comparison.Settings(
        "squad",
        "/data",
        "/weights/small/model",
        max_seq_length=384,
        train_file="train.json",
        dev_file="dev.json",
    )


@pytest.mark.parametrize(
    ("side", "script"),
    [
        ("ours", "run_squad.py"),
        ("huggingface", "benchmarks/peers/huggingface_squad.py"),
    ],
)
def test_commands_for_questions(sides, squad, tmp_path, side, script):
    program, *words = sides.SIDES[side].arguments(squad, 7, tmp_path)
    assert program == str(ROOT / script)
    assert {
        "--train_file=/data/train.json",
        "--predict_file=/data/dev.json",
        "--predict_batch_size=8",
        "--max_seq_length=384",
        "--random_seed=7",
    } <= set(words)
    absent = ("--task_name", "--data_dir", "--dev_file", "--eval_batch_size")
    assert not any(word.startswith(absent) for word in words)


def test_our_answer_to_questions(sides, squad, tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "eval_results.json").write_text(
        '{"eval_exact_match": 25.0, "eval_f1": 50.0, "global_step": 3, '
        '"train_seconds": 12.5}'
    )
    answer = sides.our_answer(squad, tmp_path)
    assert answer.scores == {"exact_match": 0.25, "f1": 0.5}
    assert answer.eval_loss is None


def test_the_peers_answers_are_scored_as_ours(sides, squad, tmp_path):
    """One of two questions is answered rightly."""
    questions = [
        Question("a", "who", "it was Ada", (Answer("Ada", 7),)),
        Question("b", "where", "in Rome", (Answer("Rome", 3),)),
    ]
    squad_files.write(tmp_path / "dev.json", questions)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "predictions.json").write_text(
        '{"a": "the Ada", "b": "in"}'
    )
    said = {"train_seconds": 1.5, "global_step": 3, "versions": {"torch": "2"}}
    (tmp_path / "stdout").write_text(json.dumps(said))
    squad = dataclasses.replace(squad, data_dir=str(tmp_path))
    answer = sides.peer_answer(squad, tmp_path)
    assert answer.scores == {"exact_match": 0.5, "f1": 0.5}
    assert (answer.eval_loss, answer.train_seconds) == (None, 1.5)


def test_our_answer(sides, settings, tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "eval_results.json").write_text(
        '{"eval_accuracy": 0.5, "eval_f1": 0.25, "eval_loss": 0.75, '
        '"global_step": 343, "loss": 0.7, "train_seconds": 12.5}'
    )
    answer = sides.our_answer(settings, tmp_path)
    assert answer.scores == {"accuracy": 0.5, "f1": 0.25}
    assert (answer.eval_loss, answer.global_step) == (0.75, 343)
    assert answer.train_seconds == 12.5
    assert {"bert_tf", "tensorflow", "keras"} <= set(answer.versions)


def test_the_peers_answer_is_scored_as_ours(sides, settings, tmp_path):
    said = {
        "train_seconds": 12.5,
        "global_step": 345,
        "eval_loss": 0.75,
        "labels": [1, 1, 0, 0],
        "predictions": [1, 0, 0, 1],
        "versions": {"torch": "2.13"},
    }
    (tmp_path / "stdout").write_text("{'a': 'log'}\n" + json.dumps(said))
    answer = sides.peer_answer(settings, tmp_path)
    assert answer.scores == {"accuracy": 0.5, "f1": 0.5}
    assert answer.versions == {"torch": "2.13"}
    assert answer.global_step == 345


# The peer.


def test_the_peer_reads_tables_as_they_are(peer, tmp_path):
    """No quoting, a BOM, both ends of line, lines that only look like two."""
    path = tmp_path / "train.tsv"
    path.write_bytes(
        '\ufeffsentence\tlabel\n"a\t0\r\n\nb \u2028c\rd"\t1\n'.encode()
    )
    assert peer.read_rows(path) == [['"a', "0"], ['b \u2028c\rd"', "1"]]


@pytest.mark.parametrize(
    ("task_name", "row", "texts", "label"),
    [
        ("mrpc", "1\t7\t8\ta b\tc", (["a b"], ["c"]), 1),
        ("sst-2", "a b\t0", (["a b"],), 0),
        ("sts-b", "0\t1\t2\t3\t4\t5\t6\ta\tb\t3.80", (["a"], ["b"]), 3.8),
    ],
)
def test_the_peers_examples(peer, tmp_path, task_name, row, texts, label):
    path = tmp_path / "train.tsv"
    path.write_text(f"titles\n{row}\n", encoding="utf-8")
    tokenizer = mock.Mock(
        return_value={"input_ids": [[2, 5, 3]], "token_type_ids": [[0, 0, 0]]}
    )
    task = peer.TASKS[task_name]
    assert peer.features(path, task, tokenizer, 61) == [
        {"input_ids": [2, 5, 3], "token_type_ids": [0, 0, 0], "labels": label}
    ]
    tokenizer.assert_called_once_with(
        *texts, truncation="longest_first", max_length=61, padding=False
    )


def test_what_the_peer_predicts(peer):
    logits = np.array([[0.5, 0.25], [-2.0, -1.0]])
    assert peer.decide(logits, peer.TASKS["mrpc"]).tolist() == [0, 1]
    numbers = np.array([[0.5], [4.75]])
    assert peer.decide(numbers, peer.TASKS["sts-b"]).tolist() == [0.5, 4.75]


def test_the_peers_recipe(peer, monkeypatch):
    """What would otherwise be Trainer's own."""
    words = ["--task_name=mrpc", "--data_dir=d", "--init_checkpoint=c"]
    monkeypatch.setattr(sys, "argv", ["peer", *words, "--output_dir=o"])
    monkeypatch.setattr(
        peer, "TrainingArguments", lambda folder, **fields: fields
    )
    recipe = peer.training_arguments(peer.parse_arguments())
    assert recipe["warmup_steps"] == 0.1
    assert recipe["weight_decay"] == 0.01
    assert recipe["max_grad_norm"] == 1.0
    assert recipe["lr_scheduler_type"] == "linear"
    assert recipe["train_sampling_strategy"] == "group_by_length"
    assert recipe["report_to"] == "none"


# What is measured.


def test_what_a_command_takes(measured, tmp_path):
    """200 MiB that are written to, and the variables that it gets."""
    program = (
        "import os, time; held = b'1' * (200 << 20); time.sleep(0.2); "
        "print(os.environ['COLOUR'])"
    )
    usage = measured.run(
        [sys.executable, "-c", program], tmp_path, {"COLOUR": "green"}
    )
    assert (tmp_path / "stdout").read_text() == "green\n"
    assert 0.2 < usage.seconds < 60
    assert 0 < usage.cpu_seconds < 60
    # In bytes. What the tests' own process holds is counted as well.
    assert 200 << 20 < usage.peak_bytes < 64 << 30


def test_what_the_machine_does(measured, tmp_path):
    stat = tmp_path / "stat"
    stat.write_text("cpu  100 20 300 9999 8888 1 2 77 60 0\ncpu0 1 2 3\n")
    ticks = os.sysconf("SC_CLK_TCK")
    assert measured.busy_seconds(stat) == 500 / ticks
    before = measured.busy_seconds()
    sum(range(10**6))
    assert measured.busy_seconds() >= before > 0


def test_a_command_that_fails_says_why(measured, tmp_path):
    program = "import sys; print('x' * 9999 + 'why', file=sys.stderr); 1/0"
    with pytest.raises(SystemExit) as left:
        measured.run([sys.executable, "-c", program], tmp_path, {})
    assert "ZeroDivisionError" in left.value.code
    assert "xwhy" in left.value.code
    assert "error: exit status 1 of " in left.value.code
    assert len(left.value.code) < 3000


def test_the_machine(measured, tmp_path):
    assert set(measured.machine()) == {"processor", "cores", "memory", "system"}
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(
        "processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\n"
        "flags\t\t: fpu avx2 avx512f avx512_bf16\n\n"
    )
    assert measured.processor(cpuinfo) == "Some CPU @ 2 GHz, AVX-512"
    cpuinfo.write_text("model name\t: Old\nflags\t: fpu sse2\n")
    assert measured.processor(cpuinfo) == "Old"
    assert measured.processor(tmp_path / "absent")


def test_more_cores_than_there_are(measured):
    with pytest.raises(SystemExit, match="expected --num_threads from 1 to"):
        measured.hold_to_cpus(10_000)


def test_an_environment_is_made_once(benchmarks, tmp_path, monkeypatch):
    environment = benchmarks("peer_environment")
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    monkeypatch.setattr(environment, "PEERS", tmp_path)
    monkeypatch.setattr(environment.venv, "create", mock.Mock())
    install = mock.Mock(
        side_effect=lambda *_, **__: (tmp_path / ".venv-peer-x").mkdir(
            exist_ok=True
        )
    )
    monkeypatch.setattr(environment.subprocess, "run", install)
    packages = tmp_path / "x.txt"
    packages.write_text("a\n")
    python = str(tmp_path / ".venv-peer-x" / "bin" / "python")
    assert environment.python_of("x") == python
    assert environment.python_of("x") == python
    assert install.call_count == 1
    assert install.call_args.args[0][-2:] == ["-r", packages]
    later = packages.stat().st_mtime + 5
    os.utime(packages, (later, later))
    environment.python_of("x")
    assert install.call_count == 2


# All of it.


@pytest.fixture
def launch(benchmarks):
    with in_process.script("fine_tuning", ["task_name", "data_dir"]) as launch:
        yield launch


@pytest.fixture
def quick_sides(sides, monkeypatch):
    """Sides whose command does nothing; gives the folders that they got."""
    started = []

    def arguments(settings, seed, folder, name):
        started.append((name, seed))
        return ["-c", "pass"]

    def answer(settings, folder):
        return sides.Answer({"accuracy": 0.5, "f1": 0.5}, 0.5, 1, 2.0, {})

    for name in ("ours", "ours_static"):
        monkeypatch.setitem(
            sides.SIDES,
            name,
            sides.Side(
                name,
                lambda *given, name=name: arguments(*given, name),
                answer,
            ),
        )
    return started


def words(tmp_path, *more):
    return [
        "--task_name=mrpc",
        f"--data_dir={tmp_path}",
        f"--init_checkpoint={tmp_path}",
        "--variants=ours,ours_static",
        f"--output={tmp_path}/results.json",
        *more,
    ]


def test_sides_take_turns_and_go_on(
    launch, quick_sides, comparison, tmp_path, capsys
):
    assert launch(words(tmp_path, "--num_seeds=2")) == 0
    first = [("ours", 1), ("ours_static", 1), ("ours_static", 2), ("ours", 2)]
    assert quick_sides == first
    assert "ours, seed 1: accuracy 50.00, f1 50.00; 1 steps in 2.0 s" in (
        capsys.readouterr().out
    )
    assert launch(words(tmp_path, "--num_seeds=3")) == 0
    assert quick_sides == [*first, ("ours", 3), ("ours_static", 3)]
    kept = comparison.Comparison.read(tmp_path / "results.json")
    assert [(run.side, run.seed) for run in kept.runs] == quick_sides
    assert kept.command.startswith("python fine_tuning.py --task_name=mrpc")


def test_results_of_other_settings_are_not_gone_on_with(
    launch, quick_sides, tmp_path
):
    assert launch(words(tmp_path, "--num_seeds=1")) == 0
    before = (tmp_path / "results.json").read_bytes()
    status = launch(words(tmp_path, "--num_seeds=2", "--learning_rate=1e-3"))
    assert "expected --output of the same settings and machine" in status
    assert (tmp_path / "results.json").read_bytes() == before


def test_a_side_that_there_is_not(launch, tmp_path, capsys):
    assert launch(words(tmp_path, "--variants=ours,theirs")) == 2
    assert "expected a comma list of some of ours" in capsys.readouterr().err


@pytest.fixture
def small_task(tmp_path):
    """MRPC's layout, and weights of a model that knows 18 letters."""
    generator = random.Random(0)
    folder = tmp_path / "MRPC"
    folder.mkdir()
    for split, count in (("train", 29), ("dev", 11)):
        rows = ["Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"]
        for number in range(count):
            a, b = (
                " ".join(generator.choices("abcdef", k=generator.randint(1, 7)))
                for _ in range(2)
            )
            rows.append(f"{number % 2}\t{number}\t{number}\t{a}\t{b}")
        text = "".join(f"{row}\n" for row in rows)
        (folder / f"{split}.tsv").write_text(text, encoding="utf-8-sig")
    weights = tmp_path / "weights"
    weights.mkdir()
    huggingface.write(str(weights), pretrained("encoder"))
    return folder, weights


@pytest.mark.slow
def test_ours_for_real(small_task, comparison, tmp_path):
    folder, weights = small_task
    output = tmp_path / "results.json"
    done = subprocess.run(
        [
            sys.executable,
            str(BENCHMARKS / "fine_tuning.py"),
            "--task_name=mrpc",
            f"--data_dir={folder}",
            f"--init_checkpoint={weights}",
            "--variants=ours,ours_static",
            "--num_seeds=1",
            "--num_train_epochs=2",
            "--train_batch_size=7",
            "--max_seq_length=17",
            f"--output={output}",
        ],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    assert "| bert_tf over | training |" in done.stdout
    ours, static = comparison.Comparison.read(output).runs
    assert ours.global_step == static.global_step == 29 * 2 // 7
    assert 0 <= ours.scores["accuracy"] <= 1
    assert 0 < ours.train_seconds < ours.seconds
    assert ours.peak_bytes > 50 << 20
