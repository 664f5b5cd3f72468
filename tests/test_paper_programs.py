"""The programs in examples/paper: what they plan, run, print and write."""

import json
import math

import in_process
import paper_programs
import pytest

from bert_tf.base import options

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
        known = options.declared(in_process.config_type_of(load(name)))
        words = {flag: v for flag, v in flags.items() if flag in known}
        return launched(paper_programs.words(words))


def table_of(name, tmp_path):
    """Returns the rows that a program has written, as lists of cells."""
    text = (tmp_path / "out" / f"{name}.md").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [line.strip("| ").split(" | ") for line in lines[2:]]


@pytest.mark.slow
def test_table_5_and_resuming(scripts, inputs, tmp_path, capsys):
    def score(script, given):
        accuracy = 0.7 + int(given.get("random_seed", 1)) / 10
        accuracy -= "bilstm" in script
        f1 = 61.5 if script.endswith("squad.py") else 0.7
        return {"eval_accuracy": accuracy, "eval_f1": f1}

    scripts.score = score
    for split in ("train", "dev"):
        (tmp_path / f"{split}-v1.1.json").write_text('{"question": 1}')
    # The default tasks.
    given = {**inputs, "squad_dir": tmp_path, "max_examples": 80}
    given |= {"first_seq_length": 16, "warmup_proportion": 0.5}
    assert launch("ablation_tasks", given, tmp_path) == 0
    # The last two rows of the table are one model; each has two phases.
    runs = scripts.of("run_pretraining.py")
    kinds = ((False, None), (True, None), (True, "left_to_right"))
    assert [
        ("nonext_sentence" in flags, flags.get("attention_direction"))
        for flags in runs
    ] == [kind for kind in kinds for _ in range(2)]
    assert [
        (flags["max_seq_length"], flags.get("stop_at_step")) for flags in runs
    ] == [("16", "15"), ("64", None)] * 3
    on_bilstm = scripts.of("examples/paper/bilstm_classifier.py")
    assert len(scripts.of("run_classifier.py") + on_bilstm) == 4 * 2 * 2
    rows = table_of("ablation_tasks", tmp_path)
    assert rows[0] == [
        *("BERT", "85.0 ± 7.07", "86.7", "85.0 ± 7.07", "92.7"),
        *("61.5 ± 0.00", "88.5", "70.0 ± 0.00"),
    ]
    assert rows[3][:3] == ["+ BiLSTM", "-15.0 ± 7.07", "75.7"]
    output = capsys.readouterr().out
    assert "QNLI is left out: there is no " in output
    assert "- NER: BERT against No NSP: here: 70.0 = 70.0 (" in output
    assert (tmp_path / "out" / "ablation_tasks.png").exists()
    count = len(scripts.commands)
    assert launch("ablation_tasks", given, tmp_path) == 0
    assert len(scripts.commands) == count
    assert table_of("ablation_tasks", tmp_path) == rows


@pytest.mark.slow
def test_table_7(scripts, inputs, tmp_path, capsys):
    """A failed run leaves a gap, which the next run fills."""
    scripts.score = lambda script, given: {"eval_f1": 0.9}
    scripts.fails_at = 4
    given = {"conll_dir": inputs["conll_dir"], "init_checkpoint": "bert"}
    assert launch("feature_based", given, tmp_path) == 1
    error = capsys.readouterr().err
    assert "1 of the runs failed, and 0 that need them" in error
    assert "what was wrong" in error
    rows = table_of("feature_based", tmp_path)
    assert rows[1] == ["Embeddings", "90.0 ± 0.00", "91.0"]
    assert rows[2] == ["Second-to-Last Hidden", "90.0", "95.6"]
    assert launch("feature_based", given, tmp_path) == 0
    tuned, runs = (scripts.of(name) for name in ("run_ner.py", FEATURE_SCRIPT))
    assert (len(tuned), len(runs)) == (2, 6 * 2)


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


def test_wrong_flags_are_errors(scripts, inputs, tmp_path, capsys):
    for given, expected in (
        (
            {"conll_dir": "absent"},
            "NER needs absent/eng.train, which does not exist. Correct --conll",
        ),
        (
            {"also": "--optimiser=lamb"},
            "run_pretraining.py: Unknown command line flag 'optimiser'",
        ),
    ):
        given = {**inputs, "held_out_file": __file__, **given}
        assert launch("ablation_tasks", given, tmp_path) == 1
        assert expected in in_process.the_error(capsys, "ablation_tasks")
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
    scores = [float(row[1]) for row in table_of("ablation_tasks", tmp_path)]
    assert len(scores) == 4
    assert all(0 <= score <= 100 for score in scores)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (
            [70.0, 70.2],
            [60.0, 60.2],
            "70.1 > 60.1 (same direction; p = 0.0002)",
        ),
        ([61.0], [60.0], "61.0 > 60.0 (same direction; one seed, not tested)"),
        # Welch's: one row does not vary. Student's p would be 0.095.
        (
            [0.0, 2.0],
            [4.0, 4.0],
            "1.00 < 4.00 (the other direction; p = 0.2, not significant)",
        ),
        ([0.0, 0.0], [9.0, 9.4], "0.00 < 9.20 (a model has learned nothing)"),
        ([math.nan, 60.0], [60.0, 61.0], "nan ? 60.5 (no number to compare)"),
    ],
)
def test_claims_are_compared(first, second, expected):
    with paper_programs.importable() as load:
        tables = load("tables")
    rows = {"a": ["first", 3], "b": ["second", 5]}
    claims = [("a", "b"), ("b", "a", "STS-B")]
    table = tables.Table(
        *("t", "A table", ["Row", "#L"], rows, {"MRPC": (84.4, 83.9)}, claims)
    )
    known = {("a", "MRPC"): first, ("b", "MRPC"): second, ("a", "STS-B"): []}
    text = tables.markdown(table, known)
    claim = f"\n- MRPC: a against b: paper: 84.4 > 83.9; here: {expected}\n"
    assert claim in text
    assert text.count("against") == 1
    assert "- MRPC, lowest to highest row: paper: 83.9 to 84.4; here: " in text
    assert "| Row | #L | MRPC | paper | STS-B | paper |\n" in text
    assert f"| first | 3 | {tables.cell(first)} | 84.4 |  |  |\n" in text


def test_tasks_made_of_squad(tmp_path):
    """Wrong sentences are other questions' answers' sentences."""
    asked = {"Who built the castle?": "Mr. Po", "Who saw rain?": "St. Ann"}
    texts = ["Mr. Po built the castle. It fell.", "It is. St. Ann saw rain."]
    paragraphs = []
    for text, (question, answer) in zip(texts, asked.items(), strict=True):
        answers = [{"text": answer, "answer_start": text.index(answer)}]
        entry = {"question": question, "answers": answers}
        qas = [{"id": str(number), **entry} for number in range(4)]
        paragraphs.append({"context": text, "qas": qas})
    path = tmp_path / "squad.json"
    path.write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    flags = {"train_file": path, "dev_file": path, "other_paragraphs": True}
    flags |= {"num_neighbors": 0, "output_dir": tmp_path}
    with paper_programs.program("make_tasks") as launched:
        assert launched(paper_programs.words(flags)) == 0
    rows = (tmp_path / "QNLI" / "dev.tsv").read_text().splitlines()[1:]
    castle, rain = "Mr. Po built the castle.", "St. Ann saw rain."
    right = {*zip(asked, [castle, rain], strict=True)}
    assert len(rows) >= 2
    for row in rows:
        _, *pair, label = row.split("\t")
        is_right = tuple(pair) in right
        assert label == ("entailment" if is_right else "not_entailment")
    assert (tmp_path / "squad" / "dev-v1.1.json").exists()
