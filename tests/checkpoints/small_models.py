"""A small model with each head, in memory and as a Hugging Face folder."""

import contextlib
import dataclasses
import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from bert_tf.checkpoints.checkpoint import Pretrained
from bert_tf.checkpoints.huggingface import config_values
from bert_tf.checkpoints.huggingface_names import HEADS, rows
from bert_tf.checkpoints.huggingface_weights import huggingface_tensors
from bert_tf.config import BertConfig
from bert_tf.errors import InputError

CONFIG = BertConfig(
    vocab_size=23,
    hidden_size=12,
    num_hidden_layers=2,
    num_attention_heads=3,
    intermediate_size=17,
    max_position_embeddings=19,
    type_vocab_size=2,
)
NUM_LABELS = {"classifier": 5, "token": 7, "choice": 1}
VOCAB = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqr")


class Arrays(dict):
    """A `Weights` in memory."""

    path = "memory"

    @property
    def shapes(self):
        return {name: value.shape for name, value in self.items()}


def arrays(head, config=CONFIG, pooler=True, seed=0):
    """Random weights of a model with this head, by their TF1 names."""
    generator = np.random.default_rng(seed)
    parts = {*HEADS[head].parts} - {"pooler"}
    if pooler:
        parts.add("pooler")
    return Arrays(
        {
            row.ours: generator.normal(
                size=[size or NUM_LABELS[head] for size in row.shape],
                scale=0.5,
            ).astype("float32")
            for row in rows(config)
            if row.part in parts
        }
    )


def slots(weights, step=11, seed=1):
    """Adam's slots for these weights."""
    generator = np.random.default_rng(seed)
    named = {
        f"{name}/{slot}": generator.random(value.shape, dtype="float32")
        for name, value in weights.items()
        for slot in ("adam_m", "adam_v")
    }
    return {**named, "global_step": np.int64(step)}


def pretrained(head, config=CONFIG, **more):
    """A whole checkpoint in memory."""
    labels = None
    if head in ("classifier", "token"):
        labels = tuple(f"label {n}" for n in range(NUM_LABELS[head]))
    facts = {
        "path": "memory",
        "weights": arrays(head, config),
        "config": config,
        "vocab": VOCAB,
        "do_lower_case": True,
        "labels": labels,
        "head": head,
    }
    return Pretrained(**facts | more)


def assert_same_weights(ours, theirs):
    """Compares names and values."""
    assert set(ours.shapes) == set(theirs.shapes)
    for name in ours.shapes:
        np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)


def assert_same(ours, theirs):
    """Compares the weights of two checkpoints and everything but the path."""
    assert_same_weights(ours.weights, theirs.weights)
    bare = {"path": "memory", "weights": {}}
    assert dataclasses.replace(ours, **bare) == dataclasses.replace(
        theirs, **bare
    )


@contextlib.contextmanager
def refused(message):
    """Expects an InputError of one line that matches a pattern."""
    with pytest.raises(InputError, match=message) as caught:
        yield
    assert "\n" not in str(caught.value)


def their_tensors(head="pretraining"):
    """The tensors of Hugging Face's class for this head."""
    return huggingface_tensors(arrays(head), CONFIG, head)


def config_dict(head="pretraining", **changes):
    """The contents of config.json."""
    whole = pretrained(head, labels=None, vocab=None)
    return json.loads(json.dumps(config_values(whole))) | changes


def write_json(folder, name, values):
    (folder / name).write_text(json.dumps(values), encoding="utf-8")


def write_folder(folder, tensors=None, config=None, head="pretraining"):
    """Writes config.json and model.safetensors; returns the path."""
    folder.mkdir(exist_ok=True)
    write_json(folder, "config.json", config or config_dict(head))
    tensors = their_tensors(head) if tensors is None else tensors
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return str(folder)


def write_shards(folder, tensors, count=3):
    """Writes tensors as shards with an index."""
    names = sorted(tensors)
    home = {}
    for n in range(count):
        shard = f"model-{n + 1:05}-of-{count:05}.safetensors"
        kept = {name: tensors[name] for name in names[n::count]}
        save_file(kept, folder / shard)
        home |= dict.fromkeys(kept, shard)
    index = {"metadata": {"total_size": 1}, "weight_map": home}
    write_json(folder, "model.safetensors.index.json", index)
