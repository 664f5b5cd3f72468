"""fill_mask.py as its users run it."""

import subprocess
import sys

import keras
import pytest
from conftest import ROOT

from bert_tf.config import BertConfig
from bert_tf.heads import BertPretrainer
from bert_tf.modeling import checkpoint_variables
from bert_tf.training import checkpoints

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat"]


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    """A folder as run_pretraining.py releases it."""
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
    weights = {k: v.numpy() for k, v in checkpoint_variables(model).items()}
    checkpoints.write(str(folder / "bert_model.ckpt"), weights)
    (folder / "bert_config.json").write_text(config.to_json_string())
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    return folder


def run(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, str(ROOT / "fill_mask.py"), *arguments],
        input=stdin,
        capture_output=True,
        text=True,
    )


def test_a_text_and_its_blanks(release):
    done = run(
        f"--init_checkpoint={release}", "--text=[MASK] cat [MASK]", "--top_k=2"
    )
    assert done.returncode == 0, done.stderr
    text, first, second = done.stdout.splitlines()
    assert text == "[MASK] cat [MASK]"
    assert first.startswith("  [MASK] 1: ")
    assert second.count("%") == 2


def test_lines_from_standard_input(release):
    done = run(
        f"--init_checkpoint={release}/bert_model.ckpt",
        stdin="the [MASK]\n\n[MASK] sat\n",
    )
    assert done.returncode == 0, done.stderr
    assert [x for x in done.stdout.splitlines() if x[0] != " "] == [
        "the [MASK]",
        "[MASK] sat",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--text=no blank"], "expected a text with [MASK]"),
        (["--text=[MASK]", "--init_checkpoint=/nowhere"], "/nowhere"),
        (["--text=[MASK]", "--vocab_file=/no.txt"], "/no.txt"),
        (["--text=[MASK]", "--top_k=0"], "top_k"),
        (["--text=[MASK]", "--vocab_file=LONG"], "at most 8 tokens"),
        (["--text=[MASK]", "--vocab_file=NO_MASK"], "Expected [MASK]"),
        (["--text=[MASK]", "--init_checkpoint=BARE"], "--bert_config_file"),
    ],
)
def test_a_mistake_is_one_line(release, tmp_path, arguments, message):
    (tmp_path / "LONG").write_text("\n".join([*WORDS, "on"]) + "\n")
    (tmp_path / "NO_MASK").write_text("\n".join(WORDS[:4]) + "\n")
    (tmp_path / "BARE").mkdir()
    for path in release.glob("bert_model*"):
        (tmp_path / "BARE" / path.name).write_bytes(path.read_bytes())
    for name in ("LONG", "NO_MASK", "BARE"):
        arguments = [x.replace(name, f"{tmp_path}/{name}") for x in arguments]
    done = run(f"--init_checkpoint={release}", *arguments)
    assert done.returncode == 1
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_vocabulary_smaller_than_the_model(release, tmp_path):
    (tmp_path / "short.txt").write_text("\n".join(WORDS[:6]) + "\n")
    done = run(
        f"--init_checkpoint={release}",
        f"--vocab_file={tmp_path}/short.txt",
        "--text=[MASK]",
        "--top_k=99",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("%") == 6
