"""A shortened demo: every step runs and reports."""

import subprocess
import sys

import pytest
from checkout import ROOT


@pytest.mark.slow
def test_the_demo_runs(tmp_path):
    done = subprocess.run(
        [
            sys.executable,
            str(ROOT / "examples" / "demo.py"),
            f"--folder={tmp_path}",
            "--num_train_steps=10",
        ],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n$ ") == 5
    assert "[MASK] 1: " in done.stdout
    report = done.stdout[done.stdout.index("What was learned") :]
    assert "masked words" in report
    assert "next sentence" in report
    released = {path.name for path in (tmp_path / "model/release").iterdir()}
    assert released == {
        "bert_config.json",
        "bert_model.ckpt.data-00000-of-00001",
        "bert_model.ckpt.index",
        "bert_tf.json",
        "vocab.txt",
    }
