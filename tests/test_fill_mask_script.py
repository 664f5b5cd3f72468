"""fill_mask.py from its command line to its output."""

import dataclasses
import io
import sys

import in_process
import pytest
import small_release

from bert_tf.checkpoints import conversion, keras_files, tf1
from bert_tf.checkpoints.pretrained import open_pretrained
from bert_tf.kinds.masked_words import job as fill_mask
from bert_tf.modeling.heads import BertPretrainer

SCRIPT_NAME = "fill_mask"
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat"]


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    folder = tmp_path_factory.mktemp("release")
    config = small_release.config_of(WORDS)
    small_release.write(folder, BertPretrainer, config, WORDS)
    return folder


@pytest.fixture
def said(launch, capsys):
    """Fills a blank and returns the output."""

    def call(*arguments):
        assert launch(["--text=The [MASK]", *arguments]) == 0
        return capsys.readouterr().out

    return call


def set_input(monkeypatch, lines):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines)))


def test_python_gets_what_is_printed(release, capsys):
    config = fill_mask.FillMaskConfig(
        init_checkpoint=str(release), text="[MASK] cat", text_b="the", top_k=1
    )
    [filled] = fill_mask.run(config)
    assert (filled.text, filled.text_b) == ("[MASK] cat", "the")
    [[(word, probability)]] = filled.blanks
    assert capsys.readouterr().out.splitlines() == [
        "[MASK] cat ||| the",
        f"  [MASK] 1: {word} ({probability:.1%})",
        f"  next sentence: {filled.next_sentence:.1%}",
    ]


def test_lines_from_standard_input(launch, release, capsys, monkeypatch):
    """Each mask has a line, and so has a pair, even without a mask."""
    lines = b"the [MASK]\n\n[MASK] ||| [MASK] sat\r\n the cat |||  sat\n"
    set_input(monkeypatch, lines)
    assert launch([f"--init_checkpoint={release}", "--top_k=1"]) == 0
    found = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0].strip() for line in found] == [
        *("the [MASK]", "[MASK] 1"),
        *("[MASK] ||| [MASK] sat", "[MASK] 1", "[MASK] 2", "next sentence"),
        *("the cat |||  sat", "next sentence"),
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"no blank", "standard input:3: The text has no [MASK]"),
        (b"caf\xe9 [MASK]", "standard input:3: byte 0xe9"),
    ],
)
def test_errors_name_the_line(
    launch, release, capsys, monkeypatch, line, message
):
    """Earlier lines are answered."""
    set_input(monkeypatch, b"the [MASK]\n\n" + line + b"\n[MASK] sat\n")
    assert launch([f"--init_checkpoint={release}"]) == 1
    captured = capsys.readouterr()
    assert captured.out.startswith("the [MASK]\n  [MASK] 1: ")
    assert captured.out.count("\n") == 2
    assert message in captured.err.splitlines()[-1]


@pytest.mark.parametrize("head", ["pretraining", "masked_lm"])
def test_other_formats_and_casings(release, tmp_path, said, head):
    planned = conversion.plan(open_pretrained(release), "keras", head)
    cased = dataclasses.replace(planned.target, do_lower_case=False)
    keras_files.write(str(tmp_path), cased)
    answer = said(f"--init_checkpoint={tmp_path}")
    # "The" is not in the vocabulary.
    assert answer != said(f"--init_checkpoint={release}")
    assert said(f"--init_checkpoint={release}", "--nodo_lower_case") == answer


def test_a_vocabulary_smaller_than_the_model(release, write, said):
    file = write("\n".join(WORDS[:6]) + "\n")
    start = f"--init_checkpoint={release}"
    assert said(start, f"--vocab_file={file}", "--top_k=99").count("%") == 6


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--text=no blank"], "The text has no [MASK]"),
        (["--top_k=0"], "--top_k must be at least 1"),
        (["--vocab_file=NO_MASK"], "4 tokens, but not [MASK]"),
        (["--init_checkpoint=ENCODER"], "no masked-LM head"),
        (["--text_b=a", "--init_checkpoint=NO_PAIRS"], "no next-sentence head"),
        (["--text=\udce9 [MASK]"], r"--text must be UTF-8; got '\udce9 [MASK]"),
    ],
)
def test_errors_are_one_line(
    launch, release, tmp_path, capsys, arguments, message
):
    names = ("NO_MASK", "ENCODER", "NO_PAIRS")
    paths = {name: tmp_path / name for name in names}
    (tmp_path / "NO_MASK").write_text("\n".join(WORDS[:4]) + "\n")
    for name, head in (("ENCODER", "encoder"), ("NO_PAIRS", "masked_lm")):
        (tmp_path / name).mkdir()
        planned = conversion.plan(open_pretrained(release), "google", head)
        tf1.write_pretrained(str(tmp_path / name), planned.target)
    words = [f"--init_checkpoint={release}", "--text=[MASK]"]
    for argument in arguments:
        flag, value = argument.split("=")
        words.append(f"{flag}={paths.get(value, value)}")
    assert launch(words) in (1, 2)
    assert message in in_process.the_error(capsys, "fill_mask")


def test_text_b_needs_a_text(launch, release, capsys):
    assert launch([f"--init_checkpoint={release}", "--text_b=the"]) == 1
    message = "--text_b needs --text"
    assert message in in_process.the_error(capsys, "fill_mask")
