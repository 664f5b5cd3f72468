"""Command lines for a model as small as can be, and what runs leave behind.

No test by itself.
"""

import json
import re

import in_process
import keras
import numpy as np
import pytest
import sentence_files

from bert_tf.config import BertConfig
from bert_tf.heads import BertClassifier
from bert_tf.interop.checkpoint import Pretrained, write_metadata
from bert_tf.modeling import checkpoint_variables
from bert_tf.training import checkpoints

CONFIG = {
    "vocab_size": len(sentence_files.VOCAB),
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 11,
    "max_position_embeddings": 29,
    "type_vocab_size": 2,
}
WITHOUT_DROPOUT = {
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
LENGTH = 23
FLAGS = {
    "do_train": True,
    "max_seq_length": LENGTH,
    "train_batch_size": 4,
    "learning_rate": 0.01,
    "num_train_epochs": 2,
    # To compile takes longer than all the steps.
    "jit_compile": "false",
}
# All flags of the original but those of files, as an old command line may have
# them.
OLD = {
    "task_name": "SST-2",
    "do_lower_case": True,
    "do_train": True,
    "do_eval": True,
    "do_predict": True,
    "max_seq_length": LENGTH,
    "train_batch_size": 4,
    "eval_batch_size": 3,
    "predict_batch_size": 2,
    "learning_rate": 0.01,
    "num_train_epochs": 2.0,
    "warmup_proportion": 0.1,
    "save_checkpoints_steps": 3,
    "iterations_per_loop": 1000,
    "use_tpu": False,
    "tpu_name": "mine",
    "tpu_zone": "europe-west4-a",
    "gcp_project": "mine",
    "master": "grpc://10.0.0.2:8470",
    "num_tpu_cores": 8,
}
# What to give back a model for, without training it.
ANSWERS = {"do_train": None, "do_eval": True, "do_predict": True}


def classifier():
    """`run_classifier.py`, to be launched in this process."""
    return in_process.script("run_classifier", ["task_name", "output_dir"])


def write_model(folder, words=sentence_files.VOCAB, **changes):
    """A configuration and a vocabulary; gives the flags that name them."""
    folder.mkdir(parents=True, exist_ok=True)
    config, vocab = folder / "config.json", folder / "words.txt"
    settings = {**CONFIG, "vocab_size": len(words), **changes}
    config.write_text(json.dumps(settings), encoding="utf-8")
    lines = "".join(f"{word}\n" for word in words)
    vocab.write_text(lines, encoding="utf-8")
    return {"bert_config_file": config, "vocab_file": vocab}


def write_release(folder, labels):
    """A release of a classifier that nobody has trained."""
    folder.mkdir()
    keras.utils.set_random_seed(3)
    config = BertConfig.from_dict(CONFIG)
    model = BertClassifier(config, len(labels))
    model.build()
    prefix = str(folder / "bert_model.ckpt")
    variables = checkpoint_variables(model)
    checkpoints.write(prefix, {k: v.numpy() for k, v in variables.items()})
    vocab = tuple(sentence_files.VOCAB)
    facts = Pretrained(prefix, {}, config, vocab, True, labels=labels)
    write_metadata(str(folder), facts)
    return folder


def arguments(**changes):
    """A command line; None takes a flag away."""
    values = {**FLAGS, **changes}
    return [f"--{k}={v}" for k, v in values.items() if v is not None]


def do_everything(launch, inputs, folder):
    """Trains, evaluates and predicts with the usual flags."""
    words = arguments(
        **inputs, output_dir=folder, do_eval=True, do_predict=True
    )
    assert launch(words) == 0
    return folder


def runner(launch, inputs):
    """A function that runs a script with the usual flags and some changes."""

    def run(output_dir, status=0, **changes):
        words = {**inputs, "output_dir": output_dir, **changes}
        assert launch(arguments(**words)) == status

    return run


def read(prefix):
    """All tensors of a checkpoint, by name, but the time that it took."""
    reader = checkpoints.Reader(str(prefix))
    return {
        name: reader[name]
        for name in reader.shapes
        if not name.endswith("/train_seconds")
    }


def weights(prefix):
    """Those of a model, without what the optimizer adds."""
    return {
        name: value
        for name, value in read(prefix).items()
        if not name.endswith(("adam_m", "adam_v", "_step", "_seen"))
    }


def assert_same(tensors, others, atol=0.0):
    """Both have the same names and values."""
    assert tensors.keys() == others.keys()
    for name, value in tensors.items():
        np.testing.assert_allclose(
            others[name], value, rtol=0, atol=atol, err_msg=name
        )


def results(folder):
    """`eval_results.txt`."""
    lines = (folder / "eval_results.txt").read_text().splitlines()
    pairs = (line.split(" = ") for line in lines)
    return {key: float(value) for key, value in pairs}


def table(path):
    """The rows of a TSV file."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [line.split("\t") for line in lines]


def assert_same_answers(folder, other):
    """The same metrics and probabilities, but for rounding."""
    found, expected = results(folder), results(other)
    del found["global_step"], expected["global_step"]
    assert found == pytest.approx(expected, abs=1e-5)
    rows, others = (table(f / "test_results.tsv") for f in (folder, other))
    np.testing.assert_allclose(
        np.array(rows, float), np.array(others, float), atol=1e-5
    )


def names_in(folder):
    """Every file by its path, event files without their time and place."""
    return {
        re.sub(r"tfevents.*", "tfevents", str(path.relative_to(folder)))
        for path in contents(folder)
    }


def contents(folder):
    """Every file and what is in it."""
    return {
        path: path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }
