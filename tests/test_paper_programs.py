"""The programs in examples/paper: what they plan, run, print and write."""

import json
import math
import pathlib

import in_process
import paper_programs
import pytest

from bert_tf.base import options
from bert_tf.errors import InputError

FEATURE_SCRIPT = "examples/paper/feature_ner.py"
SMALL = {
    "num_seeds": 2,
    "vocab_size": 31,
    "num_train_steps": 30,
    "first_seq_length": 64,
}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    return paper_programs.write_inputs(tmp_path_factory.mktemp("paper") / "in")


@pytest.fixture
def scripts():
    with paper_programs.no_jobs() as jobs:
        yield jobs


def launch(name, given, tmp_path):
    """Runs a program with the flags that it has; returns the exit status."""
    flags = {**({} if "full" in given else SMALL), **given}
    flags["output_dir"] = tmp_path / "out"
    with (
        paper_programs.program(name) as launched,
        paper_programs.importable() as load,
    ):
        kind = in_process.config_type_of(load(name))
        of_some = {*SMALL, "data_dir", "conll_dir", "held_out_file"}
        lacks = of_some - options.declared(kind).keys()
        words = {flag: v for flag, v in flags.items() if flag not in lacks}
        return launched(paper_programs.words(words))


def table_of(name, tmp_path):
    """Returns the rows that a program has written, as lists of cells."""
    text = (tmp_path / "out" / f"{name}.md").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [line.strip("| ").split(" | ") for line in lines[2:]]


@pytest.mark.slow
def test_table_5_and_resuming(scripts, inputs, tmp_path, capsys):
    def score(script, given):
        if script == "run_pretraining.py":
            return {}
        accuracy = 0.7 + int(given["random_seed"]) / 10
        accuracy -= "bilstm" in script
        f1 = 61.5 if script.endswith("squad.py") else 0.7
        return {"eval_accuracy": accuracy, "eval_f1": f1}

    scripts.score = score
    for split in ("train", "dev"):
        (tmp_path / f"{split}-v1.1.json").write_text('{"question": 1}')
    given = {**inputs, "max_examples": 80}  # The default tasks.
    given["squad_dir"] = tmp_path
    given |= {"first_seq_length": 16, "warmup_proportion": 0.5}
    assert launch("ablation_tasks", given, tmp_path) == 0
    # The last two rows of the table are one model; each has two phases.
    models = scripts.of("run_pretraining.py")
    assert [
        (
            flags["max_seq_length"],
            flags.get("stop_at_step"),
            flags["num_warmup_steps"],
            "nonext_sentence" in flags,
            flags.get("attention_direction"),
        )
        for flags in models
    ] == [
        ("16", "15", "15", False, None),
        ("64", None, "15", False, None),
        ("16", "15", "15", True, None),
        ("64", None, "15", True, None),
        ("16", "15", "15", True, "left_to_right"),
        ("64", None, "15", True, "left_to_right"),
    ]
    on_bilstm = scripts.of("examples/paper/bilstm_classifier.py")
    tuned = scripts.of("run_classifier.py") + on_bilstm
    assert (len(tuned), len(on_bilstm)) == (4 * 2 * 2, 2 * 2)
    assert {flags["num_train_epochs"] for flags in tuned} == {"2.0"}
    assert {flags["init_checkpoint"] for flags in tuned} == {
        f"{flags['output_dir']}/release" for flags in models
    }
    first = scripts.of("run_squad.py")[0]
    assert {"do_train", "do_predict", "do_eval"} <= {*first}
    rows = table_of("ablation_tasks", tmp_path)
    assert rows[0] == [
        *("BERT", "85.0 ± 7.07", "86.7", "85.0 ± 7.07", "92.7"),
        *("61.5 ± 0.00", "88.5", "70.0 ± 0.00"),
    ]
    assert rows[3][:3] == ["+ BiLSTM", "-15.0 ± 7.07", "75.7"]
    text = (tmp_path / "out" / "ablation_tasks.md").read_text()
    assert "Each model was pre-trained once" in text
    output = capsys.readouterr().out
    assert "QNLI is left out: there is no " in output
    assert "MRPC: LTR & No NSP against + BiLSTM: paper: 77.5 > 75.7" in output
    assert "- NER: BERT against No NSP: here: 70.0 = 70.0 (" in output
    assert (tmp_path / "out" / "ablation_tasks.png").exists()
    count = len(scripts.commands)
    assert launch("ablation_tasks", given, tmp_path) == 0
    assert len(scripts.commands) == count
    assert "0 to do" in capsys.readouterr().out
    assert table_of("ablation_tasks", tmp_path) == rows


@pytest.mark.slow
def test_table_7(scripts, inputs, tmp_path, capsys):
    """A failed run leaves a gap, which the next run fills."""
    scripts.score = lambda script, given: {"eval_f1": 0.9}
    scripts.fails_at = 4
    given = {
        "conll_dir": inputs["conll_dir"],
        "init_checkpoint": "bert",
        "also": "--gradient_checkpointing,--jit_compile=false",
        "lstm_size": 5,
    }
    assert launch("feature_based", given, tmp_path) == 1
    error = capsys.readouterr().err
    assert "1 of the runs failed, and 0 that need them" in error
    assert "ner-seed-1-" in error
    assert "what was wrong" in error
    rows = table_of("feature_based", tmp_path)
    assert rows[1] == ["Embeddings", "90.0 ± 0.00", "91.0"]
    assert rows[2] == ["Second-to-Last Hidden", "90.0", "95.6"]
    assert launch("feature_based", given, tmp_path) == 0
    tuned, runs = (scripts.of(name) for name in ("run_ner.py", FEATURE_SCRIPT))
    assert (len(tuned), len(runs)) == (2, 6 * 2)
    assert {flags["jit_compile"] for flags in tuned + runs} == {"false"}
    assert {flags["learning_rate"] for flags in tuned} == {"0.00025"}
    rates = {(flags["lstm_size"], flags["learning_rate"]) for flags in runs}
    assert rates == {("5", "0.001")}
    given = {**inputs, "num_seeds": 1}
    assert launch("feature_based", given, tmp_path) == 0
    [made] = scripts.of("run_pretraining.py")
    runs = [scripts.of("run_ner.py")[-1], *scripts.of(FEATURE_SCRIPT)[-6:]]
    starts = {run["init_checkpoint"] for run in runs}
    assert starts == {f"{made['output_dir']}/release"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["ablation_tasks", "ablation_size", "ablation_masking", "feature_based"],
)
def test_full_prints_and_runs_nothing(scripts, tmp_path, capsys, name):
    given = {"input_file": "wiki/*.txt", "held_out_file": "h", "full": "true"}
    assert launch(name, given, tmp_path) == 0
    output = capsys.readouterr().out
    lines = output.splitlines()[1:]
    assert len({*lines}) == len(lines) > 10
    assert "--num_train_steps=1000000 --num_warmup_steps=10000" in output
    assert "--stop_at_step=900000" in output
    assert "--max_seq_length=512 --max_predictions_per_seq=77" in output
    assert "left out" not in output
    assert not scripts.commands
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        (
            "ablation_tasks",
            {"conll_dir": "absent"},
            "NER needs absent/eng.train, which does not exist. Correct --conll",
        ),
        (
            "ablation_size",
            {"hidden_divisor": 5},
            "--hidden_divisor must be one of 1, 2, 4",
        ),
        (
            "feature_based",
            {"model_size": "L-1_H-128", "rows": "Second-to-Last Hidden"},
            "--model_size must be of 2 layers or more",
        ),
        ("ablation_tasks", {"tasks": "MRPC,X"}, "--tasks must be some of MNLI"),
        (
            "ablation_tasks",
            {"also": "--random_seed=7"},
            "--num_pretraining_seeds",
        ),
        (
            "ablation_tasks",
            {"also": "--optimiser=lamb"},
            "run_pretraining.py: Unknown command line flag 'optimiser'",
        ),
        (
            "ablation_tasks",
            {"full": "true", "warmup_proportion": 0.1},
            "--warmup_proportion does not go with --full",
        ),
    ],
)
def test_wrong_flags_are_errors(
    scripts, inputs, tmp_path, capsys, name, given, expected
):
    given = {**inputs, "held_out_file": __file__, **given}
    assert launch(name, given, tmp_path) == 1
    assert expected in in_process.the_error(capsys, name)
    assert not scripts.commands


@pytest.mark.slow
def test_from_text_to_a_table(inputs, tmp_path, capsys):
    given = {
        **inputs,
        "tasks": "SST-2",
        "model_size": "L-1_H-64",
        "num_train_steps": 3,
        "max_seq_length": 16,
        "num_train_epochs": 1,
        "fine_tuning_batch_size": 8,
        "num_seeds": 1,
        "also": "--jit_compile=false",
    }
    assert launch("ablation_tasks", given, tmp_path) == 0, capsys.readouterr()
    rows = table_of("ablation_tasks", tmp_path)
    assert len(rows) == 4
    for row in rows:
        assert 0 <= float(row[1]) <= 100


# Runs.


@pytest.fixture(scope="module")
def runs():
    with paper_programs.importable() as load:
        yield load("runs")


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("a b c\n")
    return path


def chain(runs, text, steps=7):
    """Returns a vocabulary, and a model that uses it."""
    given = {"input_file": str(text)}
    vocab = runs.Run("words", "create_vocab.py", given, "vocab.txt")
    given = {
        "vocab_file": runs.Made(vocab, "vocab.txt"),
        "num_train_steps": steps,
        "do_train": True,
    }
    return vocab, runs.Run("model", "run_pretraining.py", given)


def test_folders_of_runs_keep_their_names(runs, text, tmp_path):
    """Otherwise finished runs would be repeated."""
    vocab, model = chain(runs, text)
    assert (vocab.label, model.label) == ("words-d294baee", "model-0a405b11")
    given = {"num_train_steps": 9}
    second = runs.Run("model", "run_pretraining.py", given, continues=model)
    assert second.label == "model-456e1fd8"
    assert runs.Folder("out").place(second) == f"out/runs/{model.label}"
    assert chain(runs, text, steps=8)[1].label != "model-0a405b11"
    # The folder of the text and its time do not matter, its content does.
    other = tmp_path / "other.d" / "text.txt"
    other.parent.mkdir()
    other.write_bytes(text.read_bytes())
    assert chain(runs, other)[1].label == "model-0a405b11"
    changed = tmp_path / "changed.d" / "text.txt"
    changed.parent.mkdir()
    changed.write_text("a b d\n")
    assert chain(runs, changed)[1].label != "model-0a405b11"


def test_a_job_runs_here_and_its_log_is_kept(runs, text, tmp_path, capsys):
    text.write_text("a b c d e f\n" * 9)
    given = {"input_file": str(text), "vocab_size": 11}
    folder = runs.Folder(str(tmp_path / "out"))
    run = runs.Run("words", "create_vocab.py", given, "vocab.txt")
    assert [*folder.do([run])] == [run]
    assert "[MASK]" in pathlib.Path(folder.place(run), "vocab.txt").read_text()
    assert "Learning from" in pathlib.Path(folder.log(run)).read_text()
    assert "Learning from" not in capsys.readouterr().err
    bad = run._replace(flags={**given, "input_file": str(tmp_path / "absent")})
    with pytest.raises(InputError, match=r"1 of the runs failed.*absent"):
        [*folder.do([bad])]
    assert "Traceback" in pathlib.Path(folder.log(bad)).read_text()


# Tables.


@pytest.fixture(scope="module")
def tables():
    with paper_programs.importable() as load:
        yield load("tables")


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (
            [70.0, 70.2],
            [60.0, 60.2],
            "70.1 > 60.1 (same direction; p = 0.0002)",
        ),
        (
            [60.0, 60.2],
            [70.0, 70.2],
            "60.1 < 70.1 (the other direction; p = 0.0002)",
        ),
        (
            [60.0, 70.0],
            [59.0, 69.0],
            "65.0 > 64.0 (same direction; p = 0.9, not significant)",
        ),
        (
            [60.0, 60.0],
            [59.0, 59.0],
            "60.0 > 59.0 (same direction; each seed gave the same)",
        ),
        (
            [61.0],
            [60.0],
            "61.0 > 60.0 (same direction; one seed, not tested)",
        ),
        # Welch's: one row does not vary. Student's p would be 0.095.
        (
            [0.0, 2.0],
            [4.0, 4.0],
            "1.00 < 4.00 (the other direction; p = 0.2, not significant)",
        ),
        ([60.01, 60.02], [60.03, 60.04], "60.0 = 60.0 (no difference here)"),
        ([0.0, 0.0], [9.0, 9.4], "0.00 < 9.20 (a model has learned nothing)"),
        (
            [-0.002, -0.001],
            [9.0, 9.4],
            "-0.00 < 9.20 (a model has learned nothing)",
        ),
        ([math.nan, 60.0], [60.0, 61.0], "nan ? 60.5 (no number to compare)"),
    ],
)
def test_claims_are_compared(tables, first, second, expected):
    table = tables.Table(
        *(
            "t",
            "A table",
            ["Row", "#L"],
            {"a": ["first", 3], "b": ["second", 5]},
        ),
        {"MRPC": (84.4, 83.9)},
        [("a", "b"), ("b", "a", "STS-B")],
    )
    known = {("a", "MRPC"): first, ("b", "MRPC"): second, ("a", "STS-B"): []}
    text = tables.markdown(table, known)
    claim = f"\n- MRPC: a against b: paper: 84.4 > 83.9; here: {expected}\n"
    assert claim in text
    assert text.count("against") == 1
    assert "- MRPC, lowest to highest row: paper: 83.9 to 84.4; here: " in text
    assert "| Row | #L | MRPC | paper | STS-B | paper |\n" in text
    assert f"| first | 3 | {tables.cell(first)} | 84.4 |  |  |\n" in text


def test_negatives_can_come_from_other_paragraphs(tmp_path):
    """Wrong sentences are answers' sentences; SQuAD keeps only the latter."""
    asked = {"Who built the castle?": "Mr. Po", "Who saw rain?": "St. Ann"}
    texts = ["Mr. Po built the castle. It fell.", "It is. St. Ann saw rain."]
    paragraphs = [
        {
            "context": text,
            "qas": [
                {
                    "id": str(number),
                    "question": question,
                    "answers": [
                        {"text": answer, "answer_start": text.index(answer)}
                    ],
                }
                for number in range(4)
            ],
        }
        for text, (question, answer) in zip(texts, asked.items(), strict=True)
    ]
    path = tmp_path / "squad.json"
    path.write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    flags = {"train_file": path, "dev_file": path, "other_paragraphs": True}
    flags |= {"num_neighbors": 0, "output_dir": tmp_path}
    with paper_programs.program("make_tasks") as launched:
        assert launched(paper_programs.words(flags)) == 0
    rows = (tmp_path / "QNLI" / "dev.tsv").read_text().splitlines()[1:]
    pairs = [row.split("\t")[1:] for row in rows]
    castle, rain = "Mr. Po built the castle.", "St. Ann saw rain."
    right = dict(zip(asked, [castle, rain], strict=True))
    wrong = dict(zip(asked, [rain, castle], strict=True))
    assert len(pairs) >= 2
    labels = [label for _, _, label in pairs]
    assert labels == ["entailment", "not_entailment"] * (len(pairs) // 2)
    for question, sentence, label in pairs:
        expected = right if label == "entailment" else wrong
        assert sentence == expected[question]
    found = json.loads((tmp_path / "squad" / "dev-v1.1.json").read_text())
    for paragraph in found["data"][0]["paragraphs"]:
        [entry] = paragraph["qas"]
        question, [answer] = entry["question"], entry["answers"]
        assert paragraph["context"] == right[question]
        assert right[question][answer["answer_start"] :].startswith(
            asked[question]
        )


@pytest.mark.parametrize(
    "change",
    [
        {"answers": [{"text": "Rain", "answer_start": 0}], "question": None},
        {"answers": []},
        {"answers": [{"text": "Rain", "answer_start": 0}, {"text": "Rain"}]},
    ],
)
def test_files_that_are_not_squad_1_are_errors(tmp_path, capsys, change):
    """A question has no answer, or not in its paragraph."""
    entry = {"id": "1", "question": "What fell?"} | change
    paragraph = {"context": "Rain.", "qas": [entry]}
    path = tmp_path / "dev-v2.0.json"
    path.write_text(json.dumps({"data": [{"paragraphs": [paragraph]}]}))
    flags = {"train_file": path, "dev_file": path}
    flags["output_dir"] = tmp_path / "out"
    with paper_programs.program("make_tasks") as launched:
        assert launched(paper_programs.words(flags)) == 1
    line = in_process.the_error(capsys, "make_tasks")
    assert f"{path}: this is not a file of SQuAD 1.1" in line
    assert not (tmp_path / "out").exists()
