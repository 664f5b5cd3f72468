"""A TF1 training checkpoint: all of it is read, and training goes on from it.

A pre-training run of google-research/bert's code, stopped at step 20: two
layers of width 4, a vocabulary of 15, Adam's moments of every weight.
"""

import dataclasses
import re
import shutil

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf

from bert_tf.config import BertConfig
from bert_tf.heads import BertPretrainer
from bert_tf.modeling import checkpoint_variables
from bert_tf.optimization import AdamWeightDecay
from bert_tf.tasks.pretraining import PretrainingTask
from bert_tf.training import checkpoints
from bert_tf.training.estimator import Estimator
from bert_tf.training.settings import TrainingConfig
from bert_tf.training.weights import restore

B, S, P = 5, 13, 3
FIRST, LAST, WARMUP, PEAK = 20, 23, 21, 0.01


@pytest.fixture(scope="module")
def checkpoint(shared_data):
    """The folder, the config and the tensors of the TF1 checkpoint."""
    folder = shared_data / "checkpoints" / "tf1_tiny_keras_bert"
    config = BertConfig.from_json_file(folder / "bert_config.json")
    reader = checkpoints.Reader(checkpoints.find(str(folder)))
    return folder, config, {name: reader[name] for name in reader.shapes}


def without_dropout(config):
    return dataclasses.replace(
        config, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    )


def named_slots(optimizer, model):
    return {
        name.removeprefix(f"{model.name}/"): slot
        for name, slot in optimizer.slot_variables().items()
    }


def test_every_tensor_is_read(checkpoint, fidelity):
    folder, config, theirs = checkpoint
    model = BertPretrainer(config)
    model.build()
    optimizer = AdamWeightDecay()
    optimizer.build(model.trainable_variables)
    variables = {
        **checkpoint_variables(model),
        **named_slots(optimizer, model),
        "global_step": optimizer.iterations,
    }
    reader = checkpoints.Reader(checkpoints.find(str(folder)))
    restore(variables, reader)
    assert sorted(variables) == sorted(theirs)
    differing = [
        name
        for name, variable in variables.items()
        if not np.array_equal(variable.numpy(), theirs[name])
    ]
    fidelity(
        f"checkpoints: TF1 training checkpoint: of its {len(theirs)} tensors "
        "(weights, adam_m, adam_v, global_step), those read otherwise",
        len(differing),
        0,
    )
    assert optimizer.iterations.numpy() == FIRST


def examples():
    """One batch, the same in every step."""
    random = np.random.default_rng(3)

    def integers(limit, *shape):
        return random.integers(0, limit, (B, *shape)).astype("int32")

    return {
        "input_ids": integers(15, S),
        "input_mask": np.ones((B, S), "int32"),
        "segment_ids": integers(2, S),
        "masked_lm_positions": integers(S, P),
        "masked_lm_ids": integers(15, P),
        "masked_lm_weights": integers(2, P).astype("float32"),
        "next_sentence_labels": integers(2, 1),
    }


def data(batch_size, num_shards, shard, start_example):
    return tf.data.Dataset.from_tensors(examples()).repeat()


def trained(config, folder, output_dir):
    """The checkpoint that our loop writes, having found Google's."""
    for path in folder.glob("bert_model.ckpt.*"):
        name = path.name.replace("bert_model.ckpt", f"model.ckpt-{FIRST}")
        shutil.copyfile(path, output_dir / name)
    estimator = Estimator(
        PretrainingTask(config, S, P),
        tf.distribute.get_strategy(),
        TrainingConfig(
            train_batch_size=B,
            learning_rate=PEAK,
            num_train_steps=LAST,
            num_warmup_steps=WARMUP,
            jit_compile=False,
        ),
        str(output_dir),
    )
    assert estimator.step == FIRST
    estimator.train(data)
    return checkpoints.Reader(str(output_dir / f"model.ckpt-{LAST}"))


class Formula:
    """BERT's Adam in float64, going on from the tensors of a checkpoint."""

    def __init__(self, config, tensors):
        self.task = PretrainingTask(config, S, P)
        self.model = self.task.build_model()
        self.variables = checkpoint_variables(self.model)
        self.state = {k: v.astype("float64") for k, v in tensors.items()}

    def gradients(self):
        """At the weights of the state; the batch's mean losses, summed."""
        for name, variable in self.variables.items():
            variable.assign(self.state[name])
        batch = {k: tf.constant(v) for k, v in examples().items()}
        with tf.GradientTape() as tape:
            losses = self.task.losses(batch, self.model(batch))
            loss = tf.reduce_sum(losses["masked_lm_loss"])
            loss /= tf.reduce_sum(batch["masked_lm_weights"])
            loss += tf.reduce_mean(losses["next_sentence_loss"])
        values = [v.value for v in self.variables.values()]
        gradients = map(tf.convert_to_tensor, tape.gradient(loss, values))
        return {
            name: gradient.numpy().astype("float64")
            for name, gradient in zip(self.variables, gradients, strict=True)
        }

    def step(self, rate):
        gradients = self.gradients()
        norm = np.sqrt(sum((g**2).sum() for g in gradients.values()))
        for name, g in gradients.items():
            g = g * min(1, 1 / norm)
            m = 0.9 * self.state[f"{name}/adam_m"] + 0.1 * g
            v = 0.999 * self.state[f"{name}/adam_v"] + 0.001 * g**2
            update = m / (np.sqrt(v) + 1e-6)
            if not re.search("LayerNorm|bias", name):
                update += 0.01 * self.state[name]
            self.state[name] = self.state[name] - rate * update
            self.state |= {f"{name}/adam_m": m, f"{name}/adam_v": v}
        self.state["global_step"] += 1


def rate_at(step):
    return PEAK * (step / WARMUP if step < WARMUP else 1 - step / LAST)


@pytest.mark.slow
def test_training_goes_on_by_the_formula(checkpoint, fidelity, tmp_path):
    folder, config, tensors = checkpoint
    config = without_dropout(config)
    ours = trained(config, folder, tmp_path)
    formula = Formula(config, tensors)
    for step in range(FIRST, LAST):
        formula.step(rate_at(step))
    kinds = {"adam_m": "adam_m", "adam_v": "adam_v", "global_step": "step"}
    gaps, sizes = {}, {}
    for name, theirs in formula.state.items():
        kind = kinds.get(name.rsplit("/", 1)[-1], "weights")
        gap = np.abs(ours[name] - theirs).max()
        gaps[kind] = max(gap, gaps.get(kind, 0))
        sizes[kind] = max(np.abs(theirs).max(), sizes.get(kind, 0))
    for kind, gap in gaps.items():
        fidelity(
            f"checkpoints: TF1 training checkpoint, {LAST - FIRST} more steps "
            f"by our loop against NumPy in float64: {kind}, largest "
            "difference over the largest value",
            gap / sizes[kind],
            1e-5,
        )
