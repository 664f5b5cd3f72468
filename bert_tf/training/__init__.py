"""Optimizers, distribution, checkpoints and the training loop."""
