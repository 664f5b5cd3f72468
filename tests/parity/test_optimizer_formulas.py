"""Optimizers and learning rates over whole runs, against formulas in NumPy.

The variables are BERT's own, since names decide which ones decay. The global
norm of the gradients is clipped in two of three steps.
"""

import dataclasses
import re

import numpy as np
import pytest
from keras import ops

from bert_tf.modeling.heads import BertPretrainer
from bert_tf.modeling.optimization import (
    AdamWeightDecay,
    Lamb,
    WarmupLinearDecay,
)
from bert_tf.modeling.variables import checkpoint_variables
from tests.backends import small_bert
from tests.parity import formulas

STEPS, TOTAL, WARMUP, PEAK, DECAY = 20, 23, 7, 0.003, 0.07
CONFIG = dataclasses.replace(small_bert.CONFIG, num_hidden_layers=1)
EXCLUDED = re.compile("LayerNorm|layer_norm|bias")


def gradients_of(shapes):
    rng = np.random.default_rng(11)
    for step in range(STEPS):
        size = (1e-4, 0.1, 3.0)[step % 3]
        yield [(size * rng.normal(size=s)).astype("float32") for s in shapes]


def start():
    """Variables by name, with the same values every time, none of them zero."""
    model = BertPretrainer(CONFIG)
    with small_bert.initial_zeros():
        model.build()
    rng = np.random.default_rng(7)
    for variable in model.trainable_variables:
        variable.assign(rng.normal(scale=0.1, size=variable.shape))
    return checkpoint_variables(model)


def run(optimizer_class, **arguments):
    """Trains; returns weights and moments by the names of checkpoints."""
    optimizer = optimizer_class(
        WarmupLinearDecay(PEAK, TOTAL, WARMUP),
        weight_decay_rate=DECAY,
        global_clipnorm=1.0,
        **arguments,
    )
    named = start()
    variables = list(named.values())
    for gradients in gradients_of([v.shape for v in variables]):
        gradients = [ops.convert_to_tensor(g) for g in gradients]
        optimizer.apply(gradients, variables)
    slots = optimizer.slot_variables()
    return {
        name: small_bert.numbers(
            [v, slots[f"{v.path}/adam_m"], slots[f"{v.path}/adam_v"]]
        )
        for name, v in named.items()
    }


def run_formula(formula, dtype):
    """The same with a formula."""
    named = small_bert.numbers(start())
    assert sum(bool(EXCLUDED.search(name)) for name in named) == 18
    twins = {
        name: formula(w, 0 if EXCLUDED.search(name) else DECAY, dtype)
        for name, w in named.items()
    }
    shapes = [w.shape for w in named.values()]
    for step, gradients in enumerate(gradients_of(shapes)):
        rate = formulas.rate_at(step, PEAK, TOTAL, WARMUP)
        gradients = formulas.clipped(gradients, dtype)
        for twin, g in zip(twins.values(), gradients, strict=True):
            twin.step(g, rate)
    return {name: [t.w, t.m, t.v] for name, t in twins.items()}


def worst(ours, theirs, part):
    """The largest difference over the largest value, over all variables."""
    largest = max(np.abs(row[part]).max() for row in theirs.values())
    gaps = [
        np.abs(ours[name][part] - theirs[name][part]).max() for name in theirs
    ]
    return max(gaps) / largest


def test_berts_adam(fidelity):
    ours = run(AdamWeightDecay)
    for dtype in (np.float64, np.float32):
        theirs = run_formula(formulas.Adam, dtype)
        for part, name in enumerate(("weights", "adam_m", "adam_v")):
            fidelity(
                "optimizers: BERT's Adam, 20 steps with decay, exclusion, "
                f"clipping, warm-up, against NumPy in {dtype.__name__}: {name}",
                worst(ours, theirs, part),
                1e-6,
            )


@pytest.mark.parametrize(
    ("name", "formula", "arguments"),
    [
        pytest.param(
            *("the paper's", formulas.PaperLamb),
            {"exclude_from_layer_adaptation": ()},
            marks=pytest.mark.slow,
        ),
        ("its authors' (the default)", formulas.AuthorsLamb, {}),
    ],
)
def test_lamb(fidelity, name, formula, arguments):
    ours, theirs = run(Lamb, **arguments), run_formula(formula, np.float64)
    fidelity(
        f"optimizers: LAMB, {name} form, 20 steps with decay, exclusion, "
        "clipping, warm-up, against NumPy in float64: weights",
        worst(ours, theirs, 0),
        1e-6,
    )


def test_rate_at_its_corners(fidelity):
    schedule = WarmupLinearDecay(1.0, num_train_steps=100, num_warmup_steps=10)
    corners = {0: 0.0, 1: 0.1, 9: 0.9, 10: 0.9, 11: 0.89, 99: 0.01, 100: 0.0}
    fidelity(
        "optimizers: rate at steps 0, 1, 9, 10, 11, 99, 100 of 100 with 10 of "
        "warm-up: largest difference",
        max(abs(float(schedule(s)) - rate) for s, rate in corners.items()),
        1e-7,
    )


@pytest.mark.parametrize(
    ("total", "warmup"), [(100_000, 10_000), (343, 34), (29, 0), (29, 31)]
)
def test_rate_at_every_step(fidelity, total, warmup):
    """One call for all steps: the schedule accepts arrays."""
    steps = np.arange(total + 3)
    ours = WarmupLinearDecay(5e-5, total, warmup)(steps)
    theirs = [formulas.rate_at(step, 5e-5, total, warmup) for step in steps]
    fidelity(
        "optimizers: rate at every step of four runs, up to 100,000: largest "
        "difference over the peak",
        np.abs(ops.convert_to_numpy(ours) - theirs).max() / 5e-5,
        1e-6,
    )
