"""The program that fills table 7."""

import json

import paper_programs
import pytest

from bert_tf.feature_tagger import CHOICES

NAME = "feature_based"


@pytest.fixture(scope="module")
def launch():
    with paper_programs.program(NAME, ["output_dir"]) as launch:
        yield launch


class Program:
    """Runs it with a run_ner.py that writes a score and trains nothing.

    Attributes:
      folder: Its output.
      scripts: What it has called.
    """

    def __init__(self, launch, data, folder, scripts):
        self.folder = folder
        self.scripts = scripts
        self._launch = launch
        self._given = {
            "conll_dir": data["conll_dir"],
            "init_checkpoint": "bert",
            "output_dir": folder,
        }

    def run(self, **more):
        return self._launch(paper_programs.words({**self._given, **more}))

    def of(self, layers):
        """The flags of the runs of a row."""
        return [
            given
            for given in self.scripts.of("run_ner.py")
            if given.get("feature_layers") == layers
        ]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return paper_programs.write_inputs(tmp_path_factory.mktemp("ner") / "in")


@pytest.fixture
def program(launch, data, tmp_path):
    places = [None, *CHOICES]
    with paper_programs.no_scripts() as scripts:
        scripts.score = lambda script, given: {
            "eval_f1": 0.9 + places.index(given.get("feature_layers")) / 100
        }
        yield Program(launch, data, tmp_path / "out", scripts)


def test_the_whole_table(program, capsys):
    assert program.run(num_seeds=2) == 0
    for layers in (None, *CHOICES):
        assert [given["random_seed"] for given in program.of(layers)] == [
            *("1", "2"),
        ]
    table = (program.folder / f"{NAME}.md").read_text()
    assert "| Fine-tuning | 90.0 ± 0.00 | 96.4 |\n" in table
    assert "| Embeddings | 91.0 ± 0.00 | 91.0 |\n" in table
    assert table in capsys.readouterr().out
    single = json.loads((program.folder / f"{NAME}.json").read_text())
    assert len(single) == 2 * 7


def test_each_row_has_the_flags_of_its_mode(program):
    program.run(num_seeds=1, lstm_size=5, also="--keep_checkpoint_max=2")
    [tuned] = program.of(None)
    assert "mode" not in tuned
    assert tuned["learning_rate"] == "0.00025"
    for layers in CHOICES:
        [given] = program.of(layers)
        assert given["mode"] == "feature_based"
        assert given["lstm_size"] == "5"
        assert given["learning_rate"] == "0.001"
    for given in program.scripts.of("run_ner.py"):
        assert given["init_checkpoint"] == "bert"
        assert given["keep_checkpoint_max"] == "2"
        assert {"do_train", "do_eval"} <= {*given}


def test_other_flags_make_other_runs(program):
    program.run(num_seeds=1)
    program.run(num_seeds=1, feature_learning_rate=0.01)
    assert len(program.of("last")) == 2
    assert len(program.of(None)) == 1


def test_what_is_known_stands_in_the_table_when_a_run_fails(program, capsys):
    program.scripts.fails_at = 2
    assert program.run(num_seeds=1) == 1
    table = (program.folder / f"{NAME}.md").read_text()
    assert "| Embeddings | 91.0 | 91.0 |\n" in table
    # The others are done.
    assert "| Second-to-Last Hidden |  | 95.6 |\n" in table
    assert "| Last Hidden | 93.0 | 94.9 |\n" in table
    error = capsys.readouterr().err
    assert "ner-seed-1-" in error
    assert "what was wrong" in error


def test_without_a_checkpoint_a_model_is_made(program, data):
    given = {"input_file": data["input_file"], "num_seeds": 1}
    assert program.run(init_checkpoint="", **given) == 0
    # At the default rate all steps have the same length.
    [made] = program.scripts.of("run_pretraining.py")
    assert made["model_size"] == "L-6_H-128"
    for given in program.scripts.of("run_ner.py"):
        assert given["init_checkpoint"] == f"{made['output_dir']}/release"
