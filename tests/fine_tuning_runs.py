"""Runs of the fine-tuning scripts with a very small model. Not a test."""

import json
import re

import conll_files
import in_process
import keras
import numpy as np
import pytest
import sentence_files
import squad_files

from bert_tf.checkpoints import tf1 as checkpoints
from bert_tf.checkpoints.checkpoint import Pretrained, write_metadata
from bert_tf.config import BertConfig
from bert_tf.modeling.heads import BertClassifier
from bert_tf.modeling.variables import checkpoint_variables

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
    # Compiling takes longer than all the steps.
    "jit_compile": "false",
}
# Flags of both fine-tuning scripts of the original, with their defaults.
ORIGINAL = {
    **dict.fromkeys(("bert_config_file", "vocab_file", "init_checkpoint")),
    **dict.fromkeys(("tpu_name", "tpu_zone", "gcp_project", "master")),
    **dict.fromkeys(("do_train", "do_predict", "use_tpu"), False),
    "do_lower_case": True,
    "train_batch_size": 32,
    "predict_batch_size": 8,
    "learning_rate": 5e-5,
    "num_train_epochs": 3.0,
    "warmup_proportion": 0.1,
    "save_checkpoints_steps": 1000,
    "iterations_per_loop": 1000,
    "num_tpu_cores": 8,
}
# Uses a model without training it.
ANSWERS = {"do_train": None, "do_eval": True, "do_predict": True}


def run(script, output_dir, status=0, **flags):
    """Runs a script in this process, with `FLAGS`; None omits a flag."""
    with in_process.script(script) as launch:
        words = arguments(**flags, output_dir=output_dir)
        assert launch(words) == status


def error_of(capsys, run, folder, status=1, **flags):
    """Returns the one line of a run that fails and writes nothing."""
    before = folder.exists(), contents(folder)
    run(folder, status=status, **flags)
    assert (folder.exists(), contents(folder)) == before
    return in_process.the_error(capsys, run.args[0])


def write_model(folder, words=sentence_files.VOCAB, **changes):
    """Writes a configuration and a vocabulary; returns their flags."""
    folder.mkdir(parents=True, exist_ok=True)
    config, vocab = folder / "config.json", folder / "words.txt"
    settings = {**CONFIG, "vocab_size": len(words), **changes}
    config.write_text(json.dumps(settings), encoding="utf-8")
    lines = "".join(f"{word}\n" for word in words)
    vocab.write_text(lines, encoding="utf-8")
    return {"bert_config_file": config, "vocab_file": vocab}


def sentences(folder):
    """Returns a script, a vocabulary, and the flags of its files."""
    flags = {"data_dir": sentence_files.write(folder / "data", "sst-2")}
    return (
        "run_classifier",
        sentence_files.VOCAB,
        flags | {"task_name": "sst-2"},
    )


def spans(folder):
    asked = squad_files.questions(11, seed=1)
    flags = {"max_seq_length": 29, "doc_stride": 7, "max_query_length": 5}
    flags["train_file"] = squad_files.write(folder / "train.json", asked)
    return "run_squad", squad_files.VOCAB, flags


def tags(folder):
    flags = {"data_dir": conll_files.write(folder / "data")}
    return "run_ner", sentence_files.VOCAB, flags


def write_release(folder, labels, words=sentence_files.VOCAB, **changes):
    """Writes the release of a classifier with random weights."""
    keras.utils.set_random_seed(3)
    model = BertClassifier(config_of(words, **changes), len(labels))
    model.build()
    return write_start(folder, model, words, labels=labels)


def config_of(words=sentence_files.VOCAB, **changes):
    return BertConfig(**{**CONFIG, "vocab_size": len(words), **changes})


def write_start(folder, model, words=sentence_files.VOCAB, **facts):
    """Writes the release of a model; returns its folder."""
    folder.mkdir(parents=True)
    prefix = str(folder / "bert_model.ckpt")
    variables = checkpoint_variables(model)
    checkpoints.write(prefix, {k: v.numpy() for k, v in variables.items()})
    facts = Pretrained(prefix, {}, model.config, tuple(words), True, **facts)
    write_metadata(str(folder), facts)
    return folder


def swap_classes(folder, labels):
    """Puts the two or more classes of a release into the opposite order."""
    path = folder / "bert_tf.json"
    facts = json.loads(path.read_text())
    path.write_text(json.dumps(facts | {"labels": [*labels]}))
    tensors = read(folder / "bert_model.ckpt")
    for name in ("output_weights", "output_bias"):
        tensors[name] = tensors[name][::-1]
    checkpoints.write(str(folder / "bert_model.ckpt"), tensors)


def arguments(**changes):
    """Returns a command line; None omits a flag."""
    values = {**FLAGS, **changes}
    return [f"--{k}={v}" for k, v in values.items() if v is not None]


def read(prefix):
    """Returns all tensors of a checkpoint by name, except the training time."""
    reader = checkpoints.Reader(str(prefix))
    return {
        name: reader[name]
        for name in reader.shapes
        if not name.endswith("/train_seconds")
    }


def weights(prefix):
    """Returns the weights of a model, without the optimizer's state."""
    return {
        name: value
        for name, value in read(prefix).items()
        if not name.endswith(("adam_m", "adam_v", "_step", "_seen"))
    }


def assert_same(tensors, others, atol=0.0):
    """Checks that both have the same names and values."""
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
    """Checks that metrics and probabilities are equal up to rounding."""
    found, expected = results(folder), results(other)
    del found["global_step"], expected["global_step"]
    assert found == pytest.approx(expected, abs=1e-5)
    rows, others = (table(f / "test_results.tsv") for f in (folder, other))
    np.testing.assert_allclose(
        np.array(rows, float), np.array(others, float), atol=1e-5
    )


def files_of_a_run(*steps, records=()):
    """Returns the files of every fine-tuning that evaluates, as `names_in`."""
    models = [*(f"model.ckpt-{n}" for n in steps), "release/bert_model.ckpt"]
    return {
        *("checkpoint", "eval_results.json", "eval_results.txt"),
        *("events.out.tfevents", "fine_tuning.json"),
        *("release/bert_config.json", "release/vocab.txt"),
        *("release/bert_tf.json", *records),
        *(f"manifest.{name}.json" for name in records),
        *(f"{name}{checkpoints.DATA}" for name in models),
        *(f"{name}{checkpoints.INDEX}" for name in models),
    }


def names_in(folder):
    """Returns all paths; those of event files without their time and host."""
    return {
        re.sub(r"tfevents.*", "tfevents", str(path.relative_to(folder)))
        for path in contents(folder)
    }


def contents(folder):
    """Returns the contents of all files by path."""
    return {
        path: path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }
