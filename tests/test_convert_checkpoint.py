"""convert_checkpoint.py as a program."""

import pathlib
import subprocess
import sys

import in_process
import pytest
from checkout import ROOT
from fine_tuning_runs import contents

from bert_tf.checkpoints import tf1
from bert_tf.checkpoints.pretrained import open_pretrained
from tests.checkpoints.small_models import (
    arrays,
    assert_same_weights,
    pretrained,
    slots,
)

SCRIPT_NAME = "convert_checkpoint"
TO = "--to=google"
WEIGHTS = arrays("pretraining")


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """Checkpoints to convert: a release, one of training, invalid ones."""
    folder = tmp_path_factory.mktemp("places")
    for name in ("release", "training", "bare", "cut", "full"):
        (folder / name).mkdir()
    whole = pretrained("pretraining")
    tf1.write_pretrained(str(folder / "release"), whole)
    tf1.write_pretrained(str(folder / "training"), whole, slots(WEIGHTS))
    for path in (folder / "release").iterdir():
        content = path.read_bytes()
        if path.name.startswith("bert_model"):
            (folder / "bare" / path.name).write_bytes(content)
        if ".data-" in path.name:
            content = content[: len(content) // 2]
        (folder / "cut" / path.name).write_bytes(content)
    (folder / "full" / "mine.txt").write_text("mine")
    return folder


@pytest.fixture
def run(launch, capsys, places, monkeypatch):
    """Runs the script in the folder and returns the lines it prints."""
    monkeypatch.chdir(places)

    def call(*arguments):
        assert launch(arguments) == 0
        return capsys.readouterr().out.splitlines()

    return call


@pytest.fixture
def fail(launch, capsys, places, monkeypatch):
    """Runs the script, which writes nothing, and returns the error."""
    monkeypatch.chdir(places)

    def call(*arguments):
        before = contents(places)
        words = ["--input=release", "--output_dir=new", TO, *arguments]
        assert launch(words) in (1, 2)
        assert contents(places) == before
        return in_process.the_error(capsys, "convert_checkpoint")

    return call


@pytest.mark.slow
def test_a_round_trip_in_two_commands(places, run, tmp_path):
    words = ["--input=training", "--to=huggingface", "--verify"]
    done = subprocess.run(
        [
            *(sys.executable, str(ROOT / "convert_checkpoint.py"), *words),
            f"--output_dir={tmp_path}/theirs",
        ],
        cwd=places,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("verified    outputs differ by 0 ")
    assert lines[3].startswith(f"left over   {2 * len(WEIGHTS) + 1}: ")
    assert "2 layers of 12, 3 heads, 23 words, gelu_tanh" in lines[4]
    assert lines[-1] == f"made        {tmp_path}/theirs"
    run(f"--input={tmp_path}/theirs", f"--output_dir={tmp_path}/ours", TO)
    back = open_pretrained(tmp_path / "ours")
    assert_same_weights(back.weights, WEIGHTS)
    assert {path.name for path in tmp_path.iterdir()} == {"ours", "theirs"}


def test_adds_files_to_a_bare_checkpoint(run, tmp_path):
    run(
        "--input=bare/bert_model.ckpt",
        f"--output_dir={tmp_path}/out",
        "--to=keras",
        "--head=encoder",
        "--bert_config_file=release/bert_config.json",
        "--vocab_file=release/vocab.txt",
        "--nodo_lower_case",
    )
    made = open_pretrained(tmp_path / "out")
    assert_same_weights(made.weights, arrays("encoder"))
    assert made.vocab == pretrained("encoder").vocab
    assert made.do_lower_case is False


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--input=bare", "Pass --bert_config_file"),
        ("--input=cut", "The file is damaged"),
        ("--head=span", "cls/squad/output_weights"),
        ("--keep_optimizer", "Run without --keep_optimizer"),
        ("--output_dir=", "--output_dir must be passed"),
        ("--output_dir=full", "full: expected a new or empty"),
        ("--bert_config_file=full/mine.txt", "full/mine.txt:1"),
        ("--output_dir=a[b]", "not contain [ ]"),
    ],
)
def test_an_error_is_one_line_and_nothing_is_written(fail, argument, message):
    assert message in fail(argument)


def test_nothing_is_written_if_the_verification_fails(fail, monkeypatch):
    write = tf1.write_metadata

    def write_wrongly(folder, pretrained):
        """Stands in for a bug."""
        [path] = pathlib.Path(folder).glob("*.data-*")
        path.write_bytes(path.read_bytes()[:99])
        write(folder, pretrained)

    monkeypatch.setattr(tf1, "write_metadata", write_wrongly)
    assert "bert_model.ckpt" in fail("--verify")
