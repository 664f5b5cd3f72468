"""The programs of benchmarks: what they ask for, and what they report."""

import dataclasses
import json
import sys
from unittest import mock

import numpy as np
import pytest
from benchmark_modules import PEERS, importable
from checkout import ROOT

from bert_tf import BertConfig
from bert_tf.errors import InputError
from bert_tf.tasks.questions import Answer, Question
from tests import squad_files
from tests.interop.small_models import pretrained

# Speed of the input pipeline, start time.


def test_input_pipeline(benchmarks, monkeypatch, tmp_path, capsys):
    program = benchmarks("input_pipeline")
    monkeypatch.setattr(program, "WARM_UP", 1)
    found = program.run(
        program.InputPipelineConfig(
            rounds=2,
            seconds=0.01,
            records_per_file=50,
            output=str(tmp_path / "results.json"),
        )
    )
    assert found.cases == ["32 x 128"]
    assert all(turn.amount % 32 == 0 < turn.rate for turn in found.turns)
    assert len(found.turns) == 2
    assert (tmp_path / "results.json").exists()
    assert "## Input pipeline" in capsys.readouterr().out


def test_start(benchmarks, monkeypatch, capsys):
    """The commands of all cases, which are not run."""
    program = benchmarks("start")
    asked = []

    def ask(self, request):
        asked.append(request)
        return {"times": 1, "seconds": 1.0, "cpu_seconds": 1.0}

    monkeypatch.setattr(program.Command, "ask", ask)
    found = program.run(program.StartConfig(rounds=1))
    assert len(found.cases) == 3
    assert ["-c", "import tensorflow"] in asked
    assert [str(ROOT / "run_classifier.py"), "--help"] in asked


# Tokenization.


def test_texts_of_tokenization(benchmarks):
    program = benchmarks("tokenization")
    mixed = program.mix(["a", "b"], ["가", "나", "다"], ["word", "##s"])
    words = " ".join(["word"] * 12)
    assert mixed == ["a", "가", words, "b", "나", words]
    lines = ["ab", "cd", "ef"]
    assert [*program.first_megabytes(lines, 6e-6)] == ["ab", "cd"]


def test_our_ids_are_the_originals(benchmarks, tmp_path):
    program = benchmarks("tokenization")
    (tmp_path / "t").write_text("x\ny\n")
    text = program.Text("English", tmp_path / "t", tmp_path / "v", True)

    def answers(*lines):
        return mock.Mock(ask=lambda request: {"lines": [*lines]})

    sides = {"ours": answers("1", "2"), "huggingface": answers("1", "3")}
    fact = program._compare(text, {**sides, "original": answers("1", "2")})
    assert "2 lines" in fact
    assert fact.endswith("others for 1 lines")
    with pytest.raises(InputError, match="different ids for 1 lines"):
        program._compare(text, {**sides, "original": answers("2", "2")})


# Workloads of steps.

# A row of one example, one of three, and one of two with padding.
ROWS = ((13,), (7, 4, 2), (5, 3))


@pytest.fixture
def make(benchmarks):
    config = BertConfig(1000, num_hidden_layers=2)

    def make(*rows, **more):
        return benchmarks("workload").Workload(config, rows, 128, **more)

    return make


def test_flops_of_a_step_are_those_of_its_products(make):
    """Three times the forward pass; each weight is used for every token."""
    work = make((128,), (128,))
    assert (work.num_examples, work.max_predictions_per_seq) == (2, 19)
    block = 4 * 768**2 + 2 * 768 * 3072  # weights
    attention = 2 * 128 * 768  # for a token: scores and context
    head = 768**2 + 768 * 1000  # for a masked word
    forward = 2 * 256 * (block + attention) + 2 * 768**2
    assert work.flops() == 3 * 2 * (forward + 2 * 19 * head)
    alone = make((128,), (128,), is_training=False)
    assert alone.flops() == 2 * forward
    sizes = {"steps": 10, "matrix_size": 3, "products": 2}
    request = work.request("float32", "cpu", **sizes, least_seconds=0.5)
    assert request["flops"] == 10 * work.flops()
    config = BertConfig(**request["config"])
    assert (config.vocab_size, config.num_hidden_layers) == (1000, 2)


def test_examples_of_a_row_do_not_attend_to_each_other(make):
    shared = make((100, 28), is_training=False)
    whole = make((128,), is_training=False)
    assert shared.num_examples == 2
    assert shared.flops() == make((100,), (28,), is_training=False).flops()
    fewer_scores = 2 * 4 * 768 * (128**2 - 100**2 - 28**2)  # in two blocks
    one_more_pooled = 2 * 768**2
    assert whole.flops() - shared.flops() == fewer_scores - one_more_pooled


@pytest.fixture
def batch(benchmarks):
    def batch(rows, seed=0):
        request = {
            "rows": rows,
            "max_seq_length": 13,
            "max_predictions_per_seq": 2,
            "config": {"vocab_size": 50},
        }
        return benchmarks("workload").batch_of(request, seed)

    return batch


def test_words_of_a_batch(batch):
    made = batch(ROWS * 50)
    ids, mask = made["input_ids"], made["input_mask"]
    assert ids.shape == mask.shape == (150, 13)
    assert set(ids.flat) == set(range(50))
    assert mask.sum(axis=1).tolist() == [13, 13, 8] * 50
    assert (np.diff(mask) <= 0).all()
    positions = made["masked_lm_positions"]
    assert positions.shape == made["masked_lm_ids"].shape == (150, 2)
    assert np.take_along_axis(mask, positions, axis=1).all()
    assert set(positions.flat) == set(range(13))
    floats = ("masked_lm_weights", "next_sentence_weights")
    for name, value in made.items():
        assert value.dtype == ("float32" if name in floats else "int32")
    assert (batch(ROWS * 50)["input_ids"] == ids).all()
    assert (batch(ROWS * 50, seed=1)["input_ids"] != ids).any()


def test_examples_of_a_row_are_numbered(batch):
    made = batch(ROWS)
    assert made["example_ids"].tolist() == [
        [1] * 13,
        [1] * 7 + [2] * 4 + [3] * 2,
        [1] * 5 + [2] * 3 + [0] * 5,
    ]
    assert made["position_ids"][1].tolist() == [*range(7), *range(4), 0, 1]
    assert made["cls_positions"].tolist() == [[0, 0, 0], [0, 7, 11], [0, 5, 0]]
    assert made["next_sentence_labels"].shape == (3, 3)
    weights = [[1, 0, 0], [1, 1, 1], [1, 1, 0]]
    assert made["next_sentence_weights"].tolist() == weights
    alone = batch(((13,), (6,)))
    assert alone["next_sentence_labels"].shape == (2, 1)
    assert not alone.keys() & {"example_ids", "position_ids", "cls_positions"}


def test_complete_cases_are_not_measured_again(benchmarks, tmp_path):
    program, comparison = benchmarks("training_step"), benchmarks("comparison")

    def results(machine="A machine"):
        return comparison.Comparison(
            "Step", "tokens/s", {"ours": "x"}, machine=machine
        )

    old = results()
    old.turns = [
        comparison.Turn(case, "ours", 1.0, 1.0, 1.0, 0.0)
        for case in ("whole", "whole", "half")
    ]
    path = str(tmp_path / "results.json")
    old.write(path)
    new = results()
    program.go_on(new, path, 2, {"ours"})
    assert new.cases == ["whole"]
    new = results()
    program.go_on(new, path, 2, {"ours", "eager"})
    assert not new.cases
    with pytest.raises(InputError, match="its machine is 'A machine'"):
        program.go_on(results("Another"), path, 2, {"ours"})


def test_our_step_updates(benchmarks, make):
    with importable(PEERS) as module_of:
        peer = module_of("bert_tf_training")
        config = BertConfig.from_name("L-1_H-16_A-2", 50)
        work = dataclasses.replace(
            make((16,), (11,)), config=config, max_seq_length=16
        )
        sizes = {"steps": 1, "matrix_size": 31, "products": 1}
        request = work.request("float32", "cpu", **sizes, least_seconds=0)
        side = peer.make(request)
    first = side.steps()
    assert np.isfinite(first).all()
    assert not np.array_equal(side.steps(), first)
    assert side.products().shape == (31, 31)


# Serving.


def test_all_sides_serve_one_model(benchmarks, tmp_path, monkeypatch):
    from bert_tf.interop import huggingface

    minilm = benchmarks("minilm")
    encoder = pretrained("pretraining")
    monkeypatch.setattr(minilm, "open_pretrained", lambda path: encoder)
    minilm.write_classifier("checkpoint", str(tmp_path))
    found = huggingface.read(str(tmp_path))
    assert found.labels == ("negative", "positive")
    assert found.vocab == encoder.vocab
    for name in encoder.weights:
        if name.startswith("bert/"):
            np.testing.assert_array_equal(
                found.weights[name], encoder.weights[name]
            )
    assert found.weights["output_weights"].std() > 0.1


@pytest.fixture
def serving(benchmarks):
    return benchmarks("serving")


def test_texts_fill_whole_batches(serving, tmp_path):
    path = tmp_path / "texts.tsv"
    rows = [f"{n}\ttext {n}" for n in range(70)]
    path.write_text("\n".join(["id\ttext", *rows]), encoding="utf-8")
    config = serving.ServingConfig(data_file=path, column="text")
    texts = serving.read_texts(config)
    assert texts == [f"text {n}" for n in range(64)]
    batches = serving.request(texts, 32)["batches"]
    assert [len(batch) for batch in batches] == [32, 32]
    for changes, message in (
        ({"num_texts": 13}, "expected 32 texts or more, found 13"),
        ({"column": "words"}, "--column must be one of id, text"),
    ):
        with pytest.raises(InputError, match=message):
            serving.read_texts(dataclasses.replace(config, **changes))


def answers(probability):
    """A side that gives the same answer to every text but the last."""

    def ask(request):
        count = sum(map(len, request["batches"]))
        return {
            "labels": ["negative"] * count,
            "probabilities": [[0.5, 0.5]] * (count - 1) + [[0.5, probability]],
        }

    return mock.Mock(ask=ask)


def test_rounding_may_move_probabilities(serving):
    texts = ["text"] * 32
    given = {"ours": answers(0.5), "eager": answers(0.50009)}
    [fact] = serving.compare(given, texts, "float32")
    assert fact == (
        "torch (float32): probabilities differ from ours by at most 9e-05, "
        "labels of 0 texts differ"
    )
    given["eager"] = answers(0.59)
    assert len(serving.compare(given, texts, "bfloat16")) == 1
    for probability in (0.50011, float("nan")):
        given["eager"] = answers(probability)
        with pytest.raises(InputError, match="probabilities of eager"):
            serving.compare(given, texts, "float32")


def test_every_text_is_answered_in_order():
    def answer(texts):
        return [text.upper() for text in texts], [[len(t)] for t in texts]

    with importable(PEERS) as module_of:
        # The benchmark has the same name.
        sys.modules.pop("serving", None)
        peer = module_of("serving")
        found = peer.answered(answer, [["a", "bcd"], ["ef"]])
        del sys.modules["serving"]
    assert found["labels"] == ["A", "BCD", "EF"]
    assert found["probabilities"] == [[1], [3], [2]]
    assert 0 <= found["median_seconds"] <= found["p90_seconds"]
    assert found["p90_seconds"] <= found["seconds"]


@pytest.mark.slow
def test_serving(serving, tmp_path, capsys):
    """Both of our precisions, exported and loaded."""
    from bert_tf.interop import huggingface

    weights = tmp_path / "weights"
    weights.mkdir()
    huggingface.write(str(weights), pretrained("encoder"))
    path = tmp_path / "texts.tsv"
    path.write_text("sentence\n" + "a b\n" * 32)
    found = serving.run(
        serving.ServingConfig(
            data_file=path,
            init_checkpoint=weights,
            variants=("ours",),
            rounds=1,
            max_seq_length=17,
        )
    )
    assert found.cases == [
        *("batches of 32, float32", "batches of 1, float32"),
        *("batches of 32, bfloat16", "batches of 1, bfloat16"),
    ]
    assert "tensorflow-text" in found.versions["ours"]
    assert "| median, ms | 90 % below, ms |" in capsys.readouterr().out


# Fine-tuning.


@pytest.fixture
def fine_tuning(benchmarks):
    return benchmarks("fine_tuning")


@pytest.fixture
def config(fine_tuning, tmp_path):
    return fine_tuning.FineTuningConfig(
        task_name="mrpc",
        data_dir="/data/MRPC",
        init_checkpoint="/weights/small/model",
        max_seq_length=61,
        train_batch_size=17,
        eval_batch_size=5,
        learning_rate=3e-4,
        num_train_epochs=0.5,
        num_seeds=2,
        variants=("ours", "huggingface", "ours_static"),
        peer_python="python",
        output=str(tmp_path / "results.json"),
    )


def squad_of(config):
    return dataclasses.replace(
        config, task_name="squad", train_file="t.json", dev_file="d.json"
    )


@pytest.fixture
def peers():
    """The peers' modules; what they import is not installed here."""
    with importable(PEERS, absent=("torch", "transformers")) as module_of:
        yield module_of


@pytest.fixture
def started(fine_tuning, monkeypatch):
    """The command lines of all trainings, which are not run."""
    started = []

    def run_command(command, folder, variables):
        started.append(command[1:])
        return {"seconds": 2.0, "cpu_seconds": 1.0, "peak_bytes": 2**20}

    def answer(config, folder):
        _, names = fine_tuning.TASKS[config.task_name]
        scores = dict.fromkeys(names, 0.5)
        return {"x": "1"}, {**scores, "global_step": 1, "train_seconds": 1.5}

    monkeypatch.setattr(fine_tuning, "run_command", run_command)
    monkeypatch.setattr(
        fine_tuning, "limit_cpus", lambda n: {"OMP_NUM_THREADS": "3"}
    )
    monkeypatch.setattr(fine_tuning, "our_answer", answer)
    monkeypatch.setattr(fine_tuning, "peer_answer", answer)
    monkeypatch.setattr(
        fine_tuning, "cross_check", lambda *_: "Evaluated by both: equal"
    )
    return started


def parsed_by_peer(name, words, monkeypatch):
    """Returns the flags as the peer understands its command line."""
    monkeypatch.setattr(sys, "argv", words)
    # SciPy does not work beside a stand-in for torch.
    with importable(PEERS, absent=("torch", "transformers")) as module_of:
        return vars(module_of(name).parse_arguments())


def flags_of(words):
    pairs = (word.removeprefix("--").partition("=") for word in words)
    return {name: value for name, _, value in pairs}


def test_sides_take_turns_and_go_on(
    fine_tuning, config, started, monkeypatch, capsys
):
    found = fine_tuning.run(config)
    sides = [(turn.side, turn.case) for turn in found.turns]
    assert sides == [
        *((side, "seed 1") for side in ("ours", "huggingface", "ours_static")),
        *((side, "seed 2") for side in ("huggingface", "ours_static", "ours")),
    ]
    scripts = [words[0].rpartition("/")[2] for words in started]
    ours, theirs, static, *_ = [flags_of(words[1:]) for words in started]
    assert scripts[:2] == ["run_classifier.py", "huggingface_trainer.py"]
    same = {
        "task_name": "mrpc",
        "data_dir": "/data/MRPC",
        "init_checkpoint": "/weights/small/model",
        "max_seq_length": "61",
        "train_batch_size": "17",
        "eval_batch_size": "5",
        "learning_rate": "0.0003",
        "num_train_epochs": "0.5",
        "random_seed": "1",
    }
    assert same.items() <= ours.items()
    assert same.items() <= theirs.items()
    assert ours["padding"] == "auto"
    assert static["padding"] == "max_length"
    assert ours["do_train"] == ours["adam_bias_correction"] == "True"
    parsed = parsed_by_peer("huggingface_trainer", started[1], monkeypatch)
    assert parsed["num_threads"] == 3
    assert parsed["learning_rate"] == 3e-4
    assert "Evaluated by both: equal" in capsys.readouterr().out
    fine_tuning.run(dataclasses.replace(config, num_seeds=3))
    assert len(started) == 9
    with pytest.raises(InputError, match="results of another settings"):
        fine_tuning.run(dataclasses.replace(config, learning_rate=1.0))


def test_commands_for_questions(fine_tuning, config, started, monkeypatch):
    squad = dataclasses.replace(squad_of(config), num_seeds=1)
    fine_tuning.run(dataclasses.replace(squad, data_dir="/data"))
    ours, theirs = started[:2]
    assert ours[0] == str(ROOT / "run_squad.py")
    assert theirs[0] == str(PEERS / "huggingface_squad.py")
    for words in (ours, theirs):
        flags = flags_of(words[1:])
        assert flags["train_file"] == "/data/t.json"
        assert flags["predict_file"] == "/data/d.json"
        assert flags["predict_batch_size"] == "5"
        assert not flags.keys() & {"task_name", "data_dir", "eval_batch_size"}
    parsed = parsed_by_peer("huggingface_squad", theirs, monkeypatch)
    assert parsed["eval_batch_size"] == 5
    assert str(parsed["predict_file"]) == "/data/d.json"


def test_our_answers(fine_tuning, config, tmp_path):
    (tmp_path / "model").mkdir()
    results = {
        **{"eval_accuracy": 0.5, "eval_f1": 0.25, "eval_exact_match": 25.0},
        **{"eval_loss": 0.75, "global_step": 343, "train_seconds": 12.5},
    }
    path = tmp_path / "model" / "eval_results.json"
    path.write_text(json.dumps(results))
    versions, found = fine_tuning.our_answer(config, tmp_path)
    assert {"bert_tf", "tensorflow", "keras"} <= {*versions}
    assert found == {
        **{"accuracy": 0.5, "f1": 0.25, "eval_loss": 0.75},
        **{"global_step": 343, "train_seconds": 12.5},
    }
    _, found = fine_tuning.our_answer(squad_of(config), tmp_path)
    assert (found["exact_match"], found["f1"]) == (0.25, 0.0025)


def test_answers_of_the_peer_are_scored_as_ours(fine_tuning, config, tmp_path):
    said = {
        "train_seconds": 12.5,
        "global_step": 345,
        "eval_loss": 0.75,
        "labels": [1, 1, 0, 0],
        "predictions": [1, 0, 0, 1],
        "versions": {"torch": "2.13"},
    }
    (tmp_path / "stdout").write_text("{'a': 'log'}\n" + json.dumps(said))
    versions, found = fine_tuning.peer_answer(config, tmp_path)
    assert versions == {"torch": "2.13"}
    assert (found["accuracy"], found["f1"]) == (0.5, 0.5)
    assert (found["eval_loss"], found["global_step"]) == (0.75, 345)
    # One of two questions is answered correctly.
    questions = [
        Question("a", "who", "it was Ada", (Answer("Ada", 7),)),
        Question("b", "where", "in Rome", (Answer("Rome", 3),)),
    ]
    squad_files.write(tmp_path / "d.json", questions)
    (tmp_path / "model").mkdir()
    predictions = tmp_path / "model" / "predictions.json"
    predictions.write_text('{"a": "the Ada", "b": "in"}')
    squad = dataclasses.replace(squad_of(config), data_dir=str(tmp_path))
    _, found = fine_tuning.peer_answer(squad, tmp_path)
    assert (found["exact_match"], found["f1"]) == (0.5, 0.5)


@pytest.fixture
def three_seeds(benchmarks, fine_tuning):
    """Our scores are higher and our runs faster; one run was disturbed."""
    comparison = benchmarks("comparison")
    found = comparison.Comparison(
        *("MRPC", "mrpc", fine_tuning.TITLES, "python ...", "A machine"),
        facts=["Three seeds"],
        versions={
            "ours": {"tensorflow": "2.21"},
            "huggingface": {"torch": "2"},
        },
    )
    for seed in (1, 2, 3):
        for side, score, seconds in (
            ("ours", 0.84 + seed / 100, 100.0 + seed),
            ("huggingface", 0.79 + seed / 100, 200.0 + 2 * seed),
        ):
            more = {
                **{"accuracy": score, "f1": 0.9, "train_seconds": seconds},
                **{"global_step": 7, "peak_bytes": 3 * 2**30},
            }
            others = 90.0 if (side, seed) == ("ours", 3) else 0.0
            found.turns.append(
                comparison.Turn(
                    *(f"seed {seed}", side, 1.0, seconds + 30, 2 * seconds),
                    *(others, more),
                )
            )
    return found


def test_the_section_of_a_task(fine_tuning, three_seeds):
    text = fine_tuning.section(three_seeds)
    assert (
        "| bert_tf | 3 (2) | 86.0 (85.0 to 87.0) | 90.0 | 102 (101 to 102) | "
        "132 (131 to 132) | 203 (202 to 204) | 3,072 |"
    ) in text
    assert "| bert_tf over | training | whole command | CPU time |" in text
    assert "| Hugging Face Trainer | 0.50 (0.4" in text
    assert "- accuracy: the median of bert_tf, 86.0, is above the range" in text
    assert "- F1: the median of bert_tf, 90.0, is within the range" in text
    assert "| bert_tf | 3 | 87.0 | 90.0 | 103 | 133 | 206 | 3,072 | 7 |" in text
    assert text.count("| Hugging Face Trainer | ") == 2 + 3
    assert "\n\n\n" not in text
    three_seeds.turns = three_seeds.turns[:1]
    assert "bert_tf over" not in fine_tuning.section(three_seeds)


def test_the_page_of_fine_tuning(fine_tuning, three_seeds, tmp_path):
    page, results = tmp_path / "results.md", str(tmp_path / "mrpc.json")
    three_seeds.write(results)
    opening = "# Results\n\nBy hand.\n\n" + fine_tuning.MARK
    page.write_text(opening + "old", encoding="utf-8")
    config = fine_tuning.FineTuningConfig(
        page=str(page), results=(results, results)
    )
    for _ in range(2):
        fine_tuning.run(config)
        text = page.read_text(encoding="utf-8")
        assert text.startswith(opening + "\n## MRPC\n")
        assert text.count("## MRPC") == 2
        assert "old" not in text
    page.write_text("# Results\n", encoding="utf-8")
    with pytest.raises(InputError, match="expected the line"):
        fine_tuning.run(config)
    ours = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    assert ours.count(fine_tuning.MARK) == 1


# The peers of fine-tuning.


def test_the_peer_reads_tables(peers, tmp_path):
    """No quoting, a BOM, both ends of line, lines that only look like two."""
    path = tmp_path / "train.tsv"
    path.write_bytes(
        '\ufeffsentence\tlabel\n"a\t0\r\n\nb \u2028c\rd"\t1\n'.encode()
    )
    rows = peers("huggingface_trainer").read_rows(path)
    assert rows == [['"a', "0"], ['b \u2028c\rd"', "1"]]


@pytest.mark.parametrize(
    ("task_name", "row", "texts", "label"),
    [
        ("mrpc", "1\t7\t8\ta b\tc", (["a b"], ["c"]), 1),
        ("sst-2", "a b\t0", (["a b"],), 0),
        ("sts-b", "0\t1\t2\t3\t4\t5\t6\ta\tb\t3.80", (["a"], ["b"]), 3.8),
    ],
)
def test_examples_of_the_peer(peers, tmp_path, task_name, row, texts, label):
    path = tmp_path / "train.tsv"
    path.write_text(f"titles\n{row}\n", encoding="utf-8")
    encoded = {"input_ids": [[2, 5, 3]], "token_type_ids": [[0, 0, 0]]}
    tokenizer = mock.Mock(return_value=encoded)
    peer = peers("huggingface_trainer")
    assert peer.features(path, peer.TASKS[task_name], tokenizer, 61) == [
        {"input_ids": [2, 5, 3], "token_type_ids": [0, 0, 0], "labels": label}
    ]
    tokenizer.assert_called_once_with(
        *texts, truncation="longest_first", max_length=61, padding=False
    )


def test_predictions_and_recipe_of_the_peer(peers, monkeypatch):
    peer = peers("huggingface_trainer")
    logits = np.array([[0.5, 0.25], [-2.0, -1.0]])
    assert peer.decide(logits, peer.TASKS["mrpc"]).tolist() == [0, 1]
    numbers = np.array([[0.5], [4.75]])
    assert peer.decide(numbers, peer.TASKS["sts-b"]).tolist() == [0.5, 4.75]
    words = ["--task_name=mrpc", "--data_dir=d", "--init_checkpoint=c"]
    monkeypatch.setattr(sys, "argv", ["peer", *words, "--output_dir=o"])
    monkeypatch.setattr(
        peer, "TrainingArguments", lambda folder, **fields: fields
    )
    recipe = peer.training_arguments(peer.parse_arguments())
    assert (
        recipe.items()
        >= {
            "warmup_steps": 0.1,
            "weight_decay": 0.01,
            "max_grad_norm": 1.0,
            "lr_scheduler_type": "linear",
            "train_sampling_strategy": "group_by_length",
        }.items()
    )


def test_the_peer_reads_questions(peers, tmp_path):
    path = squad_files.write(
        tmp_path / "dev.json",
        [
            Question("a", "  who", "it was Ada", (Answer("Ada", 7),)),
            Question("b", "where", "in Rome"),
        ],
    )
    assert peers("huggingface_squad").read_questions(path) == [
        ("a", "who", "it was Ada", "Ada", 7),
        ("b", "where", "in Rome", None, 0),
    ]


@pytest.fixture
def window(peers):
    """`[CLS] who [SEP] it was ad ##a [SEP]`, of "it was Ada"."""
    offsets = np.array([[0, 2], [3, 6], [7, 9], [9, 10]])
    features = {"input_ids": list(range(8))}
    return peers("huggingface_squad").Window(0, features, 3, offsets)


@pytest.mark.parametrize(
    ("answer", "start", "positions"),
    [
        ("Ada", 7, (5, 6)),
        ("was", 3, (4, 4)),
        ("a", 4, (4, 4)),
        (None, 0, (0, 0)),
        ("Ada Lovelace", 7, (0, 0)),
    ],
)
def test_labels_of_a_window(peers, window, answer, start, positions):
    peer = peers("huggingface_squad")
    question = peer.Question("a", "who", "it was Ada Lovelace", answer, start)
    found = peer.positions(window, question)
    assert (found["start_positions"], found["end_positions"]) == positions


def test_the_best_span(peers, window):
    """It beats every other one in the context that is not too long."""
    peer = peers("huggingface_squad")
    generator = np.random.default_rng(0)
    for _ in range(50):
        scores = generator.normal(size=(8, 2))
        sums = {
            (start, end): scores[start, 0] + scores[end, 1]
            for start in range(3, 7)
            for end in range(start, min(7, start + 2))
        }
        best = max(sums, key=sums.get)
        assert peer.best_span(window, scores, 8, 2) == (sums[best], *best)
    # The only start is after the only end.
    scores = np.zeros((8, 2))
    scores[6, 0] = scores[3, 1] = 1.0
    assert peer.best_span(window, scores, 1, 30)[0] == -np.inf


def test_the_best_window_answers(peers, window):
    peer = peers("huggingface_squad")
    questions = [
        peer.Question(name, "who", "it was Ada", None, 0) for name in "ab"
    ]
    weak, strong = np.zeros((8, 2)), np.zeros((8, 2))
    weak[4] = 1.0
    strong[5, 0] = strong[6, 1] = 2.0
    arguments = mock.Mock(n_best_size=3, max_answer_length=30)
    found = peer.find_answers(
        questions, [window, window], [weak, strong], arguments
    )
    assert found == {"a": "Ada", "b": ""}


# Pages about scale.


def test_corpus_scale(benchmarks, capsys):
    """Texts of 1 and 3 kB; the vocabulary is learned from the first."""
    program = benchmarks("corpus_scale")
    config = program.CorpusScaleConfig(
        megabytes=("0.001", "0.003"),
        dupe_factor=1,
        num_workers=1,
        vocab_size=100,
    )
    rows = program.run(config)
    assert [
        row.megabytes >= size
        for row, size in zip(rows, (0.001, 0.003), strict=True)
    ] == [True, True]
    assert all(row.instances > 0 for row in rows)
    text = capsys.readouterr().out
    assert "times the memory" in text
    made = [
        program.Row(5.0, 7, 11, 100.0, 2.0),
        program.Row(50.0, 70, 110, 110.0, 18.0),
    ]
    text = program.section(config, made)
    assert "| 50 MB | 70 | 110 | 110 MiB | 18.0 s |" in text
    assert "10 times the text takes 1.10 times the memory and 9.0 times" in text


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
    program = benchmarks("fault_section")
    rows, page = tmp_path / "rows.json", tmp_path / "page.md"
    row = {"broken": "a | disk", "happened": "one line", "difference": 0.0}
    rows.write_text(json.dumps([{**row, "node": "tests/test_x.py::test_y"}]))
    page.write_text("<!-- faults: here -->\n<!-- end of faults -->\n")
    program.main(str(rows), str(page))
    assert (
        "| what was broken | what happened | difference in the end | test |\n"
        "| --- | --- | --- | --- |\n"
        "| a \\| disk | one line | 0 | `tests/test_x.py::test_y` |"
    ) in page.read_text()
