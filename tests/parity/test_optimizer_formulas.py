"""Optimizers and rate over whole runs, against formulas in NumPy.

The variables are BERT's own, so that names decide what decays. Gradients are
small in some steps and large in others: the global norm is clipped in two of
three. Runs on every Keras backend.
"""

import re

import numpy as np
import pytest
from keras import ops

from bert_tf.config import BertConfig
from bert_tf.heads import BertPretrainer
from bert_tf.modeling import checkpoint_variables
from bert_tf.optimization import (
    AdamWeightDecay,
    Lamb,
    WarmupLinearDecay,
)
from tests.backends import small_bert

STEPS, TOTAL, WARMUP, PEAK, DECAY = 20, 23, 7, 0.003, 0.07
CONFIG = BertConfig(
    vocab_size=31,
    hidden_size=10,
    num_hidden_layers=1,
    num_attention_heads=5,
    intermediate_size=23,
    max_position_embeddings=13,
    type_vocab_size=2,
)
EXCLUDED = re.compile("LayerNorm|layer_norm|bias")


def rate_at(step, peak, total, warmup):
    if step < warmup:
        return peak * step / warmup
    return peak * (1 - min(step, total) / total)


def clipped(gradients, dtype):
    """Gradients scaled down to the global norm 1, where it is larger."""
    norm = np.sqrt(sum((g.astype(dtype) ** 2).sum() for g in gradients))
    return [g.astype(dtype) * dtype(min(1, 1 / norm)) for g in gradients]


class Adam:
    """BERT's: nothing corrects the moments' bias, decay joins the update."""

    def __init__(self, w, decays, dtype):
        self.w, self.decays = w.astype(dtype), decays
        self.m, self.v = np.zeros_like(self.w), np.zeros_like(self.w)
        self.number = dtype
        self.t = 0

    def step(self, g, rate):
        n = self.number
        self.t += 1
        self.m = n(0.9) * self.m + n(1 - 0.9) * g
        self.v = n(0.999) * self.v + n(1 - 0.999) * g * g
        update = self.direction()
        if self.decays:
            update = update + n(DECAY) * self.w
        self.w = self.w - n(rate) * self.scale(update) * update

    def direction(self):
        return self.m / (np.sqrt(self.v) + self.number(1e-6))

    def scale(self, update):
        return self.number(1)


class PaperLamb(Adam):
    """Algorithm 2 of arXiv 1904.00962, phi the identity."""

    def direction(self):
        m = self.m / (1 - 0.9**self.t)
        v = self.v / (1 - 0.999**self.t)
        return m / (np.sqrt(v) + 1e-6)

    def scale(self, update):
        return np.linalg.norm(self.w) / np.linalg.norm(update)


class AuthorsLamb(PaperLamb):
    """As its authors run it: what does not decay is not adapted either."""

    def scale(self, update):
        return super().scale(update) if self.decays else 1.0


def gradients_of(shapes, steps=STEPS):
    rng = np.random.default_rng(11)
    for step in range(steps):
        size = (1e-4, 0.1, 3.0)[step % 3]
        yield [(size * rng.normal(size=s)).astype("float32") for s in shapes]


def start():
    """A model with the same weights every time, none of them zero."""
    model = BertPretrainer(CONFIG)
    with small_bert.initial_zeros():
        model.build()
    rng = np.random.default_rng(7)
    for variable in model.trainable_variables:
        variable.assign(rng.normal(scale=0.1, size=variable.shape))
    return model


def run(optimizer):
    """Trains; returns weights and moments by the names of checkpoints."""
    model = start()
    named = checkpoint_variables(model)
    variables = list(named.values())
    for gradients in gradients_of([v.shape for v in variables]):
        optimizer.apply(
            [ops.convert_to_tensor(g) for g in gradients], variables
        )
    slots = optimizer.slot_variables()
    return {
        name: [ops.convert_to_numpy(x) for x in (v, *slots_of(slots, v.path))]
        for name, v in named.items()
    }


def run_formula(formula, dtype):
    """The same by a formula."""
    named = checkpoint_variables(start())
    twins = {
        name: formula(ops.convert_to_numpy(v), not EXCLUDED.search(name), dtype)
        for name, v in named.items()
    }
    shapes = [v.shape for v in named.values()]
    for step, gradients in enumerate(gradients_of(shapes)):
        rate = rate_at(step, PEAK, TOTAL, WARMUP)
        gradients = clipped(gradients, dtype)
        for twin, g in zip(twins.values(), gradients, strict=True):
            twin.step(g, rate)
    return {name: [t.w, t.m, t.v] for name, t in twins.items()}


def slots_of(slots, path):
    return slots[f"{path}/adam_m"], slots[f"{path}/adam_v"]


def worst(ours, theirs, part):
    """The largest difference over the largest value, over all variables."""
    largest = max(np.abs(row[part]).max() for row in theirs.values())
    gaps = [
        np.abs(ours[name][part] - theirs[name][part]).max() for name in theirs
    ]
    return max(gaps) / largest


def schedule():
    return WarmupLinearDecay(PEAK, TOTAL, WARMUP)


def test_berts_adam(fidelity):
    ours = run(
        AdamWeightDecay(
            schedule(), weight_decay_rate=DECAY, global_clipnorm=1.0
        )
    )
    for dtype in (np.float64, np.float32):
        theirs = run_formula(Adam, dtype)
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
        ("the paper's", PaperLamb, {"exclude_from_layer_adaptation": ()}),
        ("its authors' (the default)", AuthorsLamb, {}),
    ],
)
def test_lamb(fidelity, name, formula, arguments):
    optimizer = Lamb(
        schedule(), weight_decay_rate=DECAY, global_clipnorm=1.0, **arguments
    )
    ours, theirs = run(optimizer), run_formula(formula, np.float64)
    fidelity(
        f"optimizers: LAMB, {name} form, 20 steps with decay, exclusion, "
        "clipping, warm-up, against NumPy in float64: weights",
        worst(ours, theirs, 0),
        1e-6,
    )


def test_the_formulas_are_put_to_the_test():
    """Gradients on both sides of the norm; both kinds of variables."""
    shapes = [tuple(v.shape) for v in start().trainable_variables]
    norms = [
        np.sqrt(sum((g**2).sum() for g in gradients))
        for gradients in gradients_of(shapes)
    ]
    assert min(norms) < 0.1 < 1 < 10 < max(norms)
    names = checkpoint_variables(start())
    assert sum(bool(EXCLUDED.search(name)) for name in names) == 18


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
    """One call for all steps: the schedule works on arrays as on numbers."""
    steps = np.arange(total + 3)
    ours = WarmupLinearDecay(5e-5, total, warmup)(steps)
    theirs = [rate_at(step, 5e-5, total, warmup) for step in steps]
    fidelity(
        "optimizers: rate at every step of four runs, up to 100,000: largest "
        "difference over the peak",
        np.abs(ops.convert_to_numpy(ours) - theirs).max() / 5e-5,
        1e-6,
    )
