"""The commands of long runs in docs/scale.md, on a corpus of some sentences."""

import json
import random

import doc_pages
import in_process
import numpy as np
import pytest
import sentence_files
import small_pretraining
from checkout import ROOT
from small_pretraining import SPECIAL

from bert_tf.checkpoints import tf1 as checkpoints

WORDS = sentence_files.FILLERS
CONFIG = {
    **small_pretraining.CONFIG,
    "vocab_size": len(SPECIAL) + len(WORDS),
    "max_position_embeddings": 512,
}
# What is divided, for training to end at step LAST.
STEPS = ("num_train_steps", "num_warmup_steps", "stop_at_step")
LAST = 10


@pytest.fixture(scope="module")
def commands():
    """Returns the script and arguments of each command."""
    page = ROOT / "docs" / "scale.md"
    before, found, _ = page.read_text("utf-8").partition("## Long sequences")
    assert found
    scripts = [
        doc_pages.script_of(command)
        for block in doc_pages.blocks(page, "sh")
        if block.line > before.count("\n")
        for command in block.commands()
    ]
    return [[script.name, *script.words] for script in scripts]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory, commands):
    """A folder with the inputs of the commands and their records."""
    folder = tmp_path_factory.mktemp("long_runs")
    draw = random.Random(0)
    (folder / "corpus").mkdir()
    sentences = [
        "\n" if number % 9 == 8 else " ".join(draw.choices(WORDS, k=17))
        for number in range(90)
    ]
    (folder / "corpus" / "a.txt").write_text("\n".join(sentences))
    (folder / "vocab.txt").write_text("\n".join((*SPECIAL, *WORDS)))
    (folder / "bert_config.json").write_text(json.dumps(CONFIG))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for script, *words in commands:
            if script == "create_pretraining_data":
                with in_process.script(script) as launch:
                    assert launch([*words, "--dupe_factor=1"]) == 0
        yield folder


def small(words):
    """Returns the command with fewer steps and smaller batches."""
    flags = dict(word[2:].partition("=")[::2] for word in words)
    steps, batch = int(flags["num_train_steps"]), int(flags["train_batch_size"])
    parts = int(flags.get("gradient_accumulation_steps", 1))
    assert batch % parts == 0
    changed = {
        name: round(int(flags[name]) * LAST / steps)
        for name in STEPS
        if name in flags
    }
    changed |= {"train_batch_size": 4, "jit_compile": "false"}
    if parts > 1:
        changed["gradient_accumulation_steps"] = 2
    return [*words, *(f"--{name}={value}" for name, value in changed.items())]


@pytest.mark.slow
@pytest.mark.parametrize("output_dir", ["model", "lamb"])
def test_two_phases(commands, corpus, caplog, output_dir):
    """The second resumes where the first stopped, on longer records."""
    first, second = (
        words
        for script, *words in commands
        if f"--output_dir={output_dir}" in words
    )
    with in_process.script("run_pretraining") as launch:
        assert launch(small(first)) == 0
        before = read(corpus / output_dir, 9)
        assert launch(small(second)) == 0
        after = read(corpus / output_dir, LAST)
        # Neither has anything left to train.
        assert launch(small(first)) == launch(small(second)) == 0
    assert "Resuming at step 9" in caplog.text
    assert f"Nothing to train: step {LAST} of 9 is done" in caplog.text
    name = "bert/embeddings/position_embeddings"
    moments = f"{name}/adam_v"
    assert not before[moments][128:].any()
    assert after[moments][128:].any()
    assert np.abs(after[name] - before[name])[:128].max() > 0


def read(folder, step):
    reader = checkpoints.Reader(str(folder / f"model.ckpt-{step}"))
    return {name: reader[name] for name in reader.shapes}
