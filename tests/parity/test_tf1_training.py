"""A TF1 training checkpoint: everything is read, and training resumes from it.

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

from bert_tf.checkpoints import tf1 as checkpoints
from bert_tf.checkpoints.weights import restore
from bert_tf.config import BertConfig
from bert_tf.kinds.pretraining.task import PretrainingTask
from bert_tf.modeling.heads import BertPretrainer
from bert_tf.modeling.optimization import AdamWeightDecay
from bert_tf.modeling.variables import checkpoint_variables
from bert_tf.training.estimator import Estimator
from bert_tf.training.settings import TrainingConfig
from tests.backends.gradients import gradients, pretraining_losses
from tests.parity import formulas

B, S, P = 5, 13, 3
FIRST, LAST, WARMUP, PEAK = 20, 23, 21, 0.01


@pytest.fixture(scope="module")
def checkpoint(shared_data):
    """The folder, the config and the tensors of the TF1 checkpoint."""
    folder = shared_data / "checkpoints" / "tf1_tiny_keras_bert"
    config = BertConfig.from_json_file(folder / "bert_config.json")
    reader = checkpoints.Reader(checkpoints.find(str(folder)))
    return folder, config, {name: reader[name] for name in reader.shapes}


def test_every_tensor_is_read(checkpoint, fidelity):
    folder, config, theirs = checkpoint
    model = BertPretrainer(config)
    model.build()
    optimizer = AdamWeightDecay()
    optimizer.build(model.trainable_variables)
    slots = {
        name.removeprefix(f"{model.name}/"): slot
        for name, slot in optimizer.slot_variables().items()
    }
    step = {"global_step": optimizer.iterations}
    variables = checkpoint_variables(model) | slots | step
    restore(variables, checkpoints.Reader(checkpoints.find(str(folder))))
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
    """The checkpoint that our loop writes after it resumed from Google's."""
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


def trained_by_formula(config, tensors):
    """Kind -> name -> array, after the same steps in float64."""
    task = PretrainingTask(config, S, P)
    model = task.build_model()
    model.build()
    variables = checkpoint_variables(model)
    batch = examples()
    twins = {
        name: formulas.Adam(
            tensors[name],
            0 if re.search("LayerNorm|bias", name) else 0.01,
            np.float64,
            m=tensors[f"{name}/adam_m"],
            v=tensors[f"{name}/adam_v"],
        )
        for name in variables
    }
    for step in range(FIRST, LAST):
        for name, variable in variables.items():
            variable.assign(twins[name].w)
        found = gradients(
            model,
            batch,
            lambda x: sum(pretraining_losses(task, batch, x).values()),
        )
        each = [found[v.path] for v in variables.values()]
        rate = formulas.rate_at(step, PEAK, LAST, WARMUP)
        for twin, g in zip(
            twins.values(), formulas.clipped(each, np.float64), strict=True
        ):
            twin.step(g, rate)
    return {
        "weights": {name: twin.w for name, twin in twins.items()},
        "adam_m": {f"{name}/adam_m": twin.m for name, twin in twins.items()},
        "adam_v": {f"{name}/adam_v": twin.v for name, twin in twins.items()},
        "step": {"global_step": np.array(LAST)},
    }


@pytest.mark.slow
def test_training_goes_on_by_the_formula(checkpoint, fidelity, tmp_path):
    folder, config, tensors = checkpoint
    config = dataclasses.replace(
        config, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    )
    ours = trained(config, folder, tmp_path)
    for kind, theirs in trained_by_formula(config, tensors).items():
        gap = max(np.abs(ours[name] - x).max() for name, x in theirs.items())
        fidelity(
            f"checkpoints: TF1 training checkpoint, {LAST - FIRST} more steps "
            f"by our loop against NumPy in float64: {kind}, largest "
            "difference over the largest value",
            gap / max(np.abs(x).max() for x in theirs.values()),
            1e-5,
        )
