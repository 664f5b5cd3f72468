"""Optimizers and learning rate schedule in NumPy, from papers and code."""

import numpy as np


def rate_at(step, peak, total, warmup):
    """Linear warm-up, then linear decay to 0."""
    if step < warmup:
        return peak * step / warmup
    return peak * (1 - min(step, total) / total)


def clipped(gradients, dtype):
    """Scales gradients down to the global norm 1 if it is larger."""
    norm = np.sqrt(sum((g.astype(dtype) ** 2).sum() for g in gradients))
    return [g.astype(dtype) * dtype(min(1, 1 / norm)) for g in gradients]


class Adam:
    """BERT's Adam: without bias correction; decay is added to the update."""

    def __init__(self, w, decay, dtype, m=0.0, v=0.0):
        self.w, self.decay, self.number = w.astype(dtype), decay, dtype
        self.m, self.v = (np.zeros_like(self.w) + x for x in (m, v))
        self.t = 0

    def step(self, g, rate):
        n = self.number
        self.t += 1
        self.m = n(0.9) * self.m + n(1 - 0.9) * g
        self.v = n(0.999) * self.v + n(1 - 0.999) * g * g
        update = self.direction() + n(self.decay) * self.w
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
    """LAMB as its authors run it: variables without decay are not adapted."""

    def scale(self, update):
        return super().scale(update) if self.decay else 1.0
