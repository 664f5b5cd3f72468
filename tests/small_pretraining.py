"""Records, a configuration and command lines of a small pre-training."""

import json

import numpy as np

from bert_tf.data import records
from bert_tf.data.records import pretraining_schema

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
VOCAB, LENGTH, PREDICTIONS = 31, 11, 3
CONFIG = {
    "vocab_size": VOCAB,
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 11,
    "max_position_embeddings": 13,
    "type_vocab_size": 2,
}
FLAGS = {
    "do_train": True,
    "max_seq_length": LENGTH,
    "max_predictions_per_seq": PREDICTIONS,
    "train_batch_size": 6,
    "eval_batch_size": 4,
    "num_train_steps": 6,
    "num_warmup_steps": 2,
    "learning_rate": 0.01,
    "save_checkpoints_steps": 3,
    "jit_compile": "false",
}


def examples(count, seed=0):
    """Random examples with 0 to 3 masked words; every second one is short."""
    random = np.random.default_rng(seed)
    lengths = random.integers(3, LENGTH + 1, [count, 1])
    lengths[::2] = LENGTH

    def integers(limit, size):
        return random.integers(0, limit, [count, size], "int32")

    masked = np.arange(PREDICTIONS) < integers(PREDICTIONS + 1, 1)
    return {
        "input_ids": integers(VOCAB, LENGTH),
        "input_mask": (np.arange(LENGTH) < lengths).astype("int32"),
        "segment_ids": integers(2, LENGTH),
        "masked_lm_positions": integers(3, PREDICTIONS),
        "masked_lm_ids": integers(VOCAB, PREDICTIONS),
        "masked_lm_weights": masked.astype("float32"),
        "next_sentence_labels": integers(2, 1),
    }


def write(path, batch):
    """Writes examples to a file of records; features may be missing."""
    schema = [
        feature
        for feature in pretraining_schema(LENGTH, PREDICTIONS)
        if feature.name in batch
    ]
    records.write(str(path), records.encode_batch(schema, batch))


def write_inputs(folder):
    """Records, a configuration and a vocabulary."""
    write(folder / "a.tfrecord", examples(17))
    write(folder / "b.tfrecord.gz", examples(14, seed=1))
    write(folder / "held_out.tfrecord", examples(7, seed=2))
    (folder / "config.json").write_text(json.dumps(CONFIG))
    words = [f"w{n}" for n in range(VOCAB - len(SPECIAL))]
    (folder / "vocab.txt").write_text("\n".join(SPECIAL + words) + "\n")


def arguments(inputs, output_dir, **changes):
    """Returns a command line; None removes a flag."""
    values = {
        **FLAGS,
        "input_file": f"{inputs}/[ab].tfrecord*",
        "bert_config_file": inputs / "config.json",
        "output_dir": output_dir,
        **changes,
    }
    return [f"--{k}={v}" for k, v in values.items() if v is not None]
