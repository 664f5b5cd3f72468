"""fill_mask.py as its users run it."""

import dataclasses
import io
import re
import subprocess
import sys

import in_process
import keras
import pytest
from checkout import ROOT

from bert_tf.config import BertConfig
from bert_tf.heads import BertPretrainer
from bert_tf.interop import conversion, google, huggingface, keras_files
from bert_tf.jobs import fill_mask
from bert_tf.modeling import checkpoint_variables
from bert_tf.pretrained import open_pretrained
from bert_tf.training import checkpoints

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat"]


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    """Returns a release folder of run_pretraining.py."""
    folder = tmp_path_factory.mktemp("release")
    config = BertConfig(
        vocab_size=len(WORDS),
        hidden_size=6,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=5,
        max_position_embeddings=13,
        type_vocab_size=2,
    )
    keras.utils.set_random_seed(1)
    model = BertPretrainer(config)
    model.build()
    # With larger weights the probabilities of words differ.
    weights = {
        name: variable.numpy() * 9
        for name, variable in checkpoint_variables(model).items()
    }
    checkpoints.write(str(folder / "bert_model.ckpt"), weights)
    (folder / "bert_config.json").write_text(config.to_json_string())
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    return folder


@pytest.fixture(scope="module")
def launch():
    with in_process.script("fill_mask", ["init_checkpoint"]) as launch:
        yield launch


def test_a_text_and_its_blanks(release):
    """Runs the script in a subprocess."""
    done = subprocess.run(
        [
            sys.executable,
            str(ROOT / "fill_mask.py"),
            f"--init_checkpoint={release}",
            "--text=[MASK] cat [MASK]",
            "--top_k=2",
        ],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    text, first, second = done.stdout.splitlines()
    assert text == "[MASK] cat [MASK]"
    assert first.startswith("  [MASK] 1: ")
    assert second.count("%") == 2


def test_python_gets_what_is_printed(release, capsys):
    config = fill_mask.FillMaskConfig(
        init_checkpoint=str(release), text="[MASK] cat", text_b="the", top_k=1
    )
    [filled] = fill_mask.run(config)
    assert (filled.text, filled.text_b) == ("[MASK] cat", "the")
    [[(word, probability)]] = filled.blanks
    printed = capsys.readouterr().out
    assert f"[MASK] 1: {word} ({probability:.1%})" in printed
    assert f"next sentence: {filled.next_sentence:.1%}" in printed


def set_input(monkeypatch, lines):
    """Sets the bytes of the standard input."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines)))


def test_lines_from_standard_input(launch, release, capsys, monkeypatch):
    set_input(monkeypatch, b"the [MASK]\n\n[MASK] sat\r\n")
    assert launch([f"--init_checkpoint={release}/bert_model.ckpt"]) == 0
    out = capsys.readouterr().out
    assert [x for x in out.splitlines() if x[0] != " "] == [
        "the [MASK]",
        "[MASK] sat",
    ]


def test_pairs(launch, release, capsys, monkeypatch):
    """Each blank has a line, and so has the pair, even without a blank."""
    checkpoint = f"--init_checkpoint={release}"
    pair = ["--text=the [MASK]", "--text_b=[MASK] sat", "--top_k=1"]
    assert launch([checkpoint, *pair]) == 0
    out = capsys.readouterr().out
    text, first, second, follows = out.splitlines()
    assert text == "the [MASK] ||| [MASK] sat"
    assert first.startswith("  [MASK] 1: ")
    assert second.startswith("  [MASK] 2: ")
    assert re.fullmatch(r"  next sentence: \d+\.\d%", follows)
    set_input(monkeypatch, b"the [MASK] ||| [MASK] sat\n the cat |||  sat\n")
    assert launch([checkpoint, "--top_k=1"]) == 0
    *same, text, follows = capsys.readouterr().out.splitlines(keepends=True)
    assert "".join(same) == out
    assert text.strip() == "the cat |||  sat"
    assert follows.startswith("  next sentence: ")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"no blank", "line 3 of the standard input: The text has no [MASK]"),
        (
            b"caf\xe9 [MASK]",
            "line 3 of the standard input is not UTF-8: byte 0xe9 after 'caf'",
        ),
    ],
)
def test_errors_name_the_line(
    launch, release, capsys, monkeypatch, line, message
):
    """Earlier lines are answered."""
    set_input(monkeypatch, b"the [MASK]\n\n" + line + b"\n[MASK] sat\n")
    assert launch([f"--init_checkpoint={release}"]) == 1
    captured = capsys.readouterr()
    text, blank = captured.out.splitlines()
    assert text == "the [MASK]"
    assert blank.startswith("  [MASK] 1: ")
    assert message in captured.err.splitlines()[-1]


@pytest.fixture
def said(launch, capsys):
    """Fills a blank and returns the output."""

    def call(*arguments):
        assert launch(["--text=The [MASK]", *arguments]) == 0
        return capsys.readouterr().out

    return call


@pytest.mark.parametrize("write", [huggingface.write, keras_files.write])
@pytest.mark.parametrize("head", ["pretraining", "masked_lm"])
def test_other_checkpoint_formats(release, tmp_path, said, write, head):
    """All formats give the same answer, also without unused heads."""
    planned = conversion.plan(open_pretrained(release), "keras", head)
    write(str(tmp_path), planned.target)
    expected = said(f"--init_checkpoint={release}")
    assert said(f"--init_checkpoint={tmp_path}") == expected


def test_the_checkpoint_records_its_casing(
    launch, release, tmp_path, said, capsys
):
    cased = dataclasses.replace(open_pretrained(release), do_lower_case=False)
    google.write(str(tmp_path), cased)
    known = f"--init_checkpoint={tmp_path}"
    uncased = said(f"--init_checkpoint={release}")
    answer = said(known)
    assert answer != uncased  # "The" is not in the vocabulary.
    assert said(f"--init_checkpoint={release}", "--nodo_lower_case") == answer
    assert launch(["--text=The [MASK]", known, "--do_lower_case"]) == 1
    message = "--do_lower_case must be false, since"
    assert message in in_process.the_error(capsys, "fill_mask")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--text=no blank"], "The text has no [MASK]"),
        (["--text=[MASK]", "--init_checkpoint=/nowhere"], "/nowhere"),
        (["--text=[MASK]", "--vocab_file=/no.txt"], "/no.txt"),
        (["--text=[MASK]", "--top_k=0"], "top_k"),
        (["--text=[MASK]", "--vocab_file=LONG"], "has 9 tokens"),
        (["--text=[MASK]", "--vocab_file=NO_MASK"], "4 tokens, but not [MASK]"),
        (["--text=[MASK]", "--init_checkpoint=BARE"], "--bert_config_file"),
        (["--text=[MASK]", "--init_checkpoint=ENCODER"], "no masked-LM head"),
        (["--text=[MASK]", "--bert_config_file=HEADS"], "num_attention_heads"),
        (["--text_b=the"], "--text_b needs --text"),
        (["--text=the", f"--text_b={'cat ' * 10}"], "has room for 10"),
        (
            ["--text=the", "--text_b=cat", "--init_checkpoint=NO_PAIRS"],
            "no next-sentence head",
        ),
    ],
)
def test_errors_are_one_line(
    launch, release, tmp_path, capsys, arguments, message
):
    (tmp_path / "LONG").write_text("\n".join([*WORDS, "on"]) + "\n")
    (tmp_path / "NO_MASK").write_text("\n".join(WORDS[:4]) + "\n")
    (tmp_path / "BARE").mkdir()
    for path in release.glob("bert_model*"):
        (tmp_path / "BARE" / path.name).write_bytes(path.read_bytes())
    heads = {"ENCODER": "encoder", "NO_PAIRS": "masked_lm"}
    for name, head in heads.items():
        (tmp_path / name).mkdir()
        planned = conversion.plan(open_pretrained(release), "google", head)
        google.write(str(tmp_path / name), planned.target)
    config = dataclasses.replace(planned.target.config, num_attention_heads=3)
    (tmp_path / "HEADS").write_text(config.to_json_string())
    for name in ("LONG", "NO_MASK", "BARE", "HEADS", *heads):
        arguments = [x.replace(name, f"{tmp_path}/{name}") for x in arguments]
    assert launch([f"--init_checkpoint={release}", *arguments]) == 1
    assert message in in_process.the_error(capsys, "fill_mask")


def test_a_text_that_is_not_utf_8(launch, release, capsys):
    words = [f"--init_checkpoint={release}", "--text=caf\udce9 [MASK]"]
    assert launch(words) == 2
    message = r"--text must be UTF-8; got 'caf\udce9 [MASK]'"
    assert message in in_process.the_error(capsys, "fill_mask")


def test_a_vocabulary_smaller_than_the_model(release, tmp_path, said):
    (tmp_path / "short.txt").write_text("\n".join(WORDS[:6]) + "\n")
    out = said(
        f"--init_checkpoint={release}",
        f"--vocab_file={tmp_path}/short.txt",
        "--top_k=99",
    )
    assert out.count("%") == 6
