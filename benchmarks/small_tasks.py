"""Small tasks for runs on several devices: BERTs on uneven data.

Lengths, masked words and classes differ between examples, and no number of
examples is a multiple of a batch: a script that counts an example twice, or
weights parts of a batch wrongly, ends with different weights.
"""

import json
import pathlib
import random

import numpy as np

from bert_tf.data import records
from bert_tf.data.records import pretraining_schema

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
WORDS = tuple(a + b for a in "bdgkmst" for b in "aeou")
VOCAB = (*SPECIAL, *WORDS)
LENGTH, PREDICTIONS = 23, 5
CLASSES = ("no", "some", "yes")
# No dropout: its masks differ between replicas.
CONFIG = {
    "vocab_size": len(VOCAB),
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 37,
    "max_position_embeddings": 29,
    "type_vocab_size": 2,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}


def pretraining_examples(count: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Returns features [count, ...] of random examples.

    They have 5 tokens or more, and some have no masked word.
    """
    draw = np.random.default_rng(seed)

    def integers(low: int, high: int, *shape: int) -> np.ndarray:
        return draw.integers(low, high, (count, *shape), dtype=np.int32)

    mask = np.arange(LENGTH) < integers(5, LENGTH + 1, 1)
    is_masked = np.arange(PREDICTIONS) < integers(0, PREDICTIONS + 1, 1)
    return {
        "input_ids": integers(len(SPECIAL), len(VOCAB), LENGTH) * mask,
        "input_mask": mask.astype(np.int32),
        "segment_ids": integers(0, 2, LENGTH) * mask,
        "masked_lm_positions": integers(0, 5, PREDICTIONS) * is_masked,
        "masked_lm_ids": integers(0, len(VOCAB), PREDICTIONS) * is_masked,
        "masked_lm_weights": is_masked.astype(np.float32),
        "next_sentence_labels": integers(0, 2, 1),
    }


def write_pretraining(folder: pathlib.Path) -> dict[str, object]:
    """Writes 31 records in three files and 5 held out; returns the flags."""
    batch = pretraining_examples(36)
    schema = pretraining_schema(LENGTH, PREDICTIONS)
    names = ["a.tfrecord", "b.tfrecord.gz", "c.tfrecord", "held_out.tfrecord"]
    for name, rows in zip(
        names, np.split(np.arange(36), [17, 30, 31]), strict=True
    ):
        part = {feature: values[rows] for feature, values in batch.items()}
        records.write(str(folder / name), records.encode_batch(schema, part))
    return {
        **_write_model(folder),
        "input_file": f"{folder}/[abc].tfrecord*",
        "eval_input_file": folder / "held_out.tfrecord",
        "max_seq_length": LENGTH,
        "max_predictions_per_seq": PREDICTIONS,
    }


def write_classification(folder: pathlib.Path) -> dict[str, object]:
    """Writes 31, 7 and 5 texts of up to 20 words; returns the flags."""
    draw = random.Random(0)
    for name, count in {"train": 31, "dev": 7, "test": 5}.items():
        lines = ["text\tlabel"]
        for number in range(count):
            words = draw.choices(WORDS, k=draw.randrange(1, 21))
            lines.append(f"{' '.join(words)}\t{CLASSES[number % 3]}")
        path = folder / f"{name}.tsv"
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return {
        **_write_model(folder),
        "task_name": "custom",
        "data_dir": folder,
        "max_seq_length": LENGTH,
        "head_dropout": 0.0,
    }


def _write_model(folder: pathlib.Path) -> dict[str, object]:
    config, vocab = folder / "bert_config.json", folder / "vocab.txt"
    config.write_text(json.dumps(CONFIG), encoding="utf-8")
    vocab.write_text("".join(f"{word}\n" for word in VOCAB), encoding="utf-8")
    return {"bert_config_file": config, "vocab_file": vocab}
