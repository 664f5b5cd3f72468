"""The four programs: what they plan, print and write; one of them trains."""

import csv
import json
import math
import shutil

import in_process
import paper_programs
import pytest

from bert_tf import options
from bert_tf.feature_tagger import CHOICES

NAMES = ("ablation_tasks", "ablation_size", "ablation_masking", "feature_based")
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
    flags = {**SMALL, **given, "output_dir": tmp_path / "out"}
    if "full" in given:
        flags = {**given, "output_dir": tmp_path / "out"}
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
    """Returns the rows that a program has written."""
    with open(tmp_path / "out" / f"{name}.csv", encoding="utf-8") as file:
        return [*csv.DictReader(file)]


def test_tasks(scripts, inputs, tmp_path, capsys):
    def score(script, given):
        if script != "run_classifier.py":
            return {}
        wrong = "bilstm_head" in given
        return {"eval_accuracy": 0.7 + int(given["random_seed"]) / 10 - wrong}

    scripts.score = score
    given = {**inputs, "tasks": "MRPC,SST-2,QNLI", "max_examples": 40}
    assert launch("ablation_tasks", given, tmp_path) == 0
    variants = [
        (
            "nonext_sentence" in flags,
            flags.get("attention_direction"),
            flags.get("objective"),
        )
        for flags in scripts.of("run_pretraining.py")
    ]
    # The last two rows are one model.
    assert variants == [
        (False, None, None),
        (True, None, None),
        (True, "left_to_right", "causal_lm"),
    ]
    assert len(scripts.of("create_pretraining_data.py")) == 1
    tuned = scripts.of("run_classifier.py")
    assert len(tuned) == 4 * 2 * 2
    assert {flags["task_name"] for flags in tuned} == {"mrpc", "sst-2"}
    assert {flags["num_train_epochs"] for flags in tuned} == {"2.0"}
    starts = {flags["init_checkpoint"] for flags in tuned}
    assert starts == {
        f"{flags['output_dir']}/release"
        for flags in scripts.of("run_pretraining.py")
    }
    rows = table_of("ablation_tasks", tmp_path)
    assert [row["Tasks"] for row in rows] == [
        *("BERT", "No NSP", "LTR & No NSP", "+ BiLSTM"),
    ]
    assert [float(row["MRPC"]) for row in rows] == pytest.approx(
        [85, 85, 85, -15]
    )
    assert [row["SST-2_paper"] for row in rows] == [
        *("92.7", "92.6", "92.1", "91.6"),
    ]
    single = json.loads((tmp_path / "out/ablation_tasks.json").read_text())
    assert [one["seed"] for one in single] == [1, 1, 2, 2] * 4
    assert single[0]["score"] == pytest.approx(80)
    assert {"row", "column", "seconds", "run", "command"} <= {*single[0]}
    output = capsys.readouterr().out
    assert "QNLI is left out: there is no " in output
    assert "SQuAD is left out: --squad_dir is not given." in output
    assert "MRPC: LTR & No NSP against + BiLSTM: paper: 77.5 > 75.7" in output
    assert (tmp_path / "out" / "ablation_tasks.md").read_text() in output
    # Again: nothing is done, and the table is the same.
    count = len(scripts.commands)
    assert launch("ablation_tasks", given, tmp_path) == 0
    assert len(scripts.commands) == count
    assert "0 to do" in capsys.readouterr().out
    assert table_of("ablation_tasks", tmp_path) == rows


def test_most_steps_have_short_sequences(scripts, inputs, tmp_path):
    given = {**inputs, "tasks": "MRPC", "first_seq_length": 16}
    given["warmup_proportion"] = 0.5
    assert launch("ablation_tasks", given, tmp_path) == 0
    made = scripts.of("create_pretraining_data.py")
    assert {flags["max_seq_length"] for flags in made} == {"16", "64"}
    models = {}
    for flags in scripts.of("run_pretraining.py"):
        phases = models.setdefault(flags["output_dir"], [])
        phases.append((flags["max_seq_length"], flags.get("stop_at_step")))
        assert flags["num_train_steps"] == "30"
        assert flags["num_warmup_steps"] == "15"
    assert [*models.values()] == [[("16", "27"), ("64", None)]] * 3
    tuned = scripts.of("run_classifier.py")
    assert {flags["max_seq_length"] for flags in tuned} == {"64"}


def test_squad_is_taken_where_it_is(scripts, inputs, tmp_path):
    squad = tmp_path / "squad"
    squad.mkdir()
    for split in ("train", "dev"):
        (squad / f"{split}-v1.1.json").write_text('{"question": 1}')
    scripts.score = lambda script, given: {"eval_f1": 61.5}
    given = {**inputs, "tasks": "QNLI", "squad_dir": squad, "num_seeds": 1}
    assert launch("ablation_tasks", given, tmp_path) == 0
    assert {row["SQuAD"] for row in table_of("ablation_tasks", tmp_path)} == {
        "61.5"
    }
    first = scripts.of("run_squad.py")[0]
    assert first["predict_file"] == str(squad / "dev-v1.1.json")
    assert {"do_train", "do_predict", "do_eval"} <= {*first}


def test_folders_that_are_not_named_are_not_used(
    scripts, inputs, tmp_path, capsys, monkeypatch
):
    """Not even those of the usual names."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "squad").mkdir()
    for split in ("train", "dev"):
        path = tmp_path / "squad" / f"{split}-v1.1.json"
        path.write_text('{"question": 1}')
    given = {**inputs, "tasks": "MRPC", "num_seeds": 1}
    assert launch("ablation_tasks", given, tmp_path) == 0
    assert not scripts.of("run_squad.py")
    expected = "SQuAD is left out: --squad_dir is not given."
    assert expected in capsys.readouterr().out
    shutil.copytree(inputs["data_dir"], tmp_path / "glue_data")
    del given["data_dir"]
    assert launch("ablation_tasks", given, tmp_path) == 1
    assert "MRPC is left out: --data_dir is not" in capsys.readouterr().out


def test_sizes(scripts, inputs, tmp_path, capsys):
    def score(script, given):
        size = given.get("model_size", "")
        loss = {"L-1_H-96_A-12": 2.0, "L-8_H-128_A-16": 1.0}.get(size, 1.5)
        return {"eval_accuracy": 0.5, "masked_lm_loss": loss}

    scripts.score = score
    held_out = tmp_path / "held_out.txt"
    shutil.copy(inputs["input_file"], held_out)
    given = {
        **inputs,
        "tasks": "MRPC",
        "held_out_file": held_out,
        "num_seeds": 1,
    }
    assert launch("ablation_size", given, tmp_path) == 0
    rows = table_of("ablation_size", tmp_path)
    assert [row["#H here"] for row in rows] == [*["96"] * 4, *["128"] * 2]
    assert [row["#L here"] for row in rows] == [*"122448"]
    assert float(rows[0]["LM (ppl)"]) == pytest.approx(math.exp(2))
    assert float(rows[-1]["LM (ppl)"]) == pytest.approx(math.e)
    assert rows[-1]["LM (ppl)_paper"] == "3.23"
    # One set of held-out examples for all, whose words are masked once.
    made = scripts.of("create_pretraining_data.py")
    assert [flags["dupe_factor"] for flags in made] == ["5", "1"]
    for flags in scripts.of("run_pretraining.py"):
        assert flags["max_eval_steps"] == "0"
        assert flags["eval_input_file"] != flags["input_file"]
    output = capsys.readouterr().out
    names = "LM (ppl): L-3_H-768_A-12 against L-6_H-768_A-3"
    assert f"{names}: paper: 5.84 > 5.24; here: 7.39 > 4.48 (same" in output


def test_masking(scripts, inputs, tmp_path):
    scripts.score = lambda script, given: {
        "eval_accuracy": 0.5,
        "eval_f1": 0.25 if "mode" in given else 0.75,
    }
    given = {**inputs, "tasks": "SST-2", "num_seeds": 1}
    assert launch("ablation_masking", given, tmp_path) == 0
    shares = [
        tuple(flags[f"{kind}_share"] for kind in ("mask", "keep", "random"))
        for flags in scripts.of("create_pretraining_data.py")
    ]
    assert shares == [
        ("0.8", "0.1", "0.1"),
        ("1.0", "0.0", "0.0"),
        ("0.8", "0.0", "0.2"),
        ("0.8", "0.2", "0.0"),
        ("0.0", "0.2", "0.8"),
        ("0.0", "0.0", "1.0"),
    ]
    rows = table_of("ablation_masking", tmp_path)
    assert (rows[1]["MASK"], rows[1]["RND"]) == ("100%", "0%")
    assert {row["NER, fine-tuned"] for row in rows} == {"75.0"}
    assert {row["NER, feature-based"] for row in rows} == {"25.0"}
    assert rows[1]["NER, feature-based_paper"] == "94.0"


def test_full_prints_and_runs_nothing(scripts, tmp_path, capsys):
    given = {"input_file": "wiki/*.txt", "held_out_file": "h", "full": "true"}
    for name in NAMES:
        assert launch(name, given, tmp_path) == 0
        output = capsys.readouterr().out
        lines = output.splitlines()[1:]
        assert len({*lines}) == len(lines) > 10
        assert "--num_train_steps=1000000 --num_warmup_steps=10000" in output
        assert "--train_batch_size=256" in output
        assert "--stop_at_step=900000" in output
        assert "--max_seq_length=512 --max_predictions_per_seq=77" in output
        assert "left out" not in output
        if name == "ablation_size":
            assert "--model_size=L-24_H-1024_A-16" in output
        else:
            assert "--model_size=base" in output
    assert not scripts.commands
    assert not (tmp_path / "out").exists()


def test_full_takes_what_is_given(scripts, tmp_path, capsys):
    given = {"input_file": "wiki/*.txt", "full": "true", "num_seeds": 2}
    given |= {"model_size": "L-4_H-128", "conll_dir": "c", "lstm_size": 3}
    assert launch("feature_based", given, tmp_path) == 0
    output = capsys.readouterr().out
    assert output.count("run_ner.py") == 2 * 7
    assert "--model_size=L-4_H-128" in output
    assert "--lstm_size=3" in output
    assert "--vocab_size=28996 --do_lower_case=false" in output
    others = {"first_seq_length": 64, "max_seq_length": 64}
    for name, value in {**others, "warmup_proportion": 0.1}.items():
        given = {"input_file": "wiki/*.txt", "full": "true", name: value}
        assert launch("ablation_tasks", given, tmp_path) == 1
        line = in_process.the_error(capsys, "ablation_tasks")
        assert f"--{name} does not go with --full" in line


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("ablation_tasks", {"tasks": "QNLI"}, "The data of no task was found"),
        ("ablation_tasks", {"tasks": "MRPC,X"}, "--tasks must be some of MNLI"),
        ("ablation_tasks", {"input_file": "absent.txt"}, "absent.txt"),
        ("feature_based", {"input_file": ""}, "Pass --init_checkpoint, or"),
        ("ablation_tasks", {"model_size": "bse"}, "'bse'"),
        (
            "ablation_masking",
            {"model_size": "L-2_H-128"},
            "four layers or more",
        ),
        ("ablation_size", {"hidden_divisor": 3}, "hidden_size=256"),
        ("ablation_tasks", {"also": "--random_seed=7"}, "--num_seeds and"),
        ("ablation_tasks", {"also": "--learning_rate=1"}, "by itself"),
    ],
)
def test_mistakes(scripts, inputs, tmp_path, capsys, name, given, expected):
    given = {**inputs, "held_out_file": __file__, **given}
    assert launch(name, given, tmp_path) == 1
    assert expected in in_process.the_error(capsys, name)
    assert not scripts.commands


def test_held_out_text_is_not_trained_on(scripts, inputs, tmp_path, capsys):
    given = {**inputs, "held_out_file": inputs["input_file"]}
    assert launch("ablation_size", given, tmp_path) == 1
    line = in_process.the_error(capsys, "ablation_size")
    assert line.endswith(f"both have {inputs['input_file']}.")
    assert not scripts.commands


def test_each_fine_tuning_may_have_its_own_model(scripts, inputs, tmp_path):
    given = {**inputs, "tasks": "MRPC", "num_seeds": 3}
    given["num_pretraining_seeds"] = 2
    assert launch("ablation_tasks", given, tmp_path) == 0
    models = {
        flags["output_dir"]: flags.get("random_seed")
        for flags in scripts.of("run_pretraining.py")
    }
    assert sorted(models.values(), key=str) == ["2"] * 3 + [None] * 3
    taken = {
        (
            flags["random_seed"],
            models[flags["init_checkpoint"][: -len("/release")]],
        )
        for flags in scripts.of("run_classifier.py")
    }
    assert taken == {("1", None), ("2", "2"), ("3", None)}
    text = (tmp_path / "out" / "ablation_tasks.md").read_text()
    assert "pre-trained once" not in text


# Table 7.


def of_layers(scripts, layers):
    """Returns the flags of the runs of a row."""
    return [
        given
        for given in scripts.of("run_ner.py")
        if given.get("feature_layers") == layers
    ]


def test_features(scripts, inputs, tmp_path, capsys):
    rows = [None, *CHOICES]
    scripts.score = lambda script, given: {
        "eval_f1": 0.9 + rows.index(given.get("feature_layers")) / 100
    }
    given = {
        "conll_dir": inputs["conll_dir"],
        "init_checkpoint": "bert",
        "also": "--keep_checkpoint_max=2,--jit_compile=false",
        "lstm_size": 5,
    }
    assert launch("feature_based", given, tmp_path) == 0
    for layers in rows:
        runs = of_layers(scripts, layers)
        assert [run["random_seed"] for run in runs] == ["1", "2"]
        for run in runs:
            assert run["init_checkpoint"] == "bert"
            assert run["keep_checkpoint_max"] == "2"
            assert {"do_train", "do_eval"} <= {*run}
            if layers is None:
                assert "mode" not in run
                assert run["learning_rate"] == "0.00025"
            else:
                assert run["mode"] == "feature_based"
                assert (run["lstm_size"], run["learning_rate"]) == (
                    "5",
                    "0.001",
                )
    table = (tmp_path / "out" / "feature_based.md").read_text()
    assert "| Fine-tuning | 90.0 ± 0.00 | 96.4 |\n" in table
    assert "| Embeddings | 91.0 ± 0.00 | 91.0 |\n" in table
    # Other flags make other runs.
    given["feature_learning_rate"] = 0.01
    assert launch("feature_based", given, tmp_path) == 0
    assert len(of_layers(scripts, "last")) == 4
    assert len(of_layers(scripts, None)) == 2


def test_a_failed_run_leaves_a_gap(scripts, inputs, tmp_path, capsys):
    scripts.score = lambda script, given: {"eval_f1": 0.9}
    scripts.fails_at = 2
    given = {"conll_dir": inputs["conll_dir"], "init_checkpoint": "bert"}
    given["num_seeds"] = 1
    assert launch("feature_based", given, tmp_path) == 1
    table = (tmp_path / "out" / "feature_based.md").read_text()
    assert "| Embeddings | 90.0 | 91.0 |\n" in table
    assert "| Second-to-Last Hidden |  | 95.6 |\n" in table
    assert "| Last Hidden | 90.0 | 94.9 |\n" in table
    error = capsys.readouterr().err
    assert "ner-seed-1-" in error
    assert "what was wrong" in error


def test_without_a_checkpoint_a_model_is_made(scripts, inputs, tmp_path):
    scripts.score = lambda script, given: {"eval_f1": 0.9}
    given = {**inputs, "num_seeds": 1}
    assert launch("feature_based", given, tmp_path) == 0
    [made] = scripts.of("run_pretraining.py")
    assert made["model_size"] == "L-6_H-128"
    for given in scripts.of("run_ner.py"):
        assert given["init_checkpoint"] == f"{made['output_dir']}/release"


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
        assert 0 <= float(row["SST-2"]) <= 100
    assert (tmp_path / "out" / "ablation_tasks.png").exists()
