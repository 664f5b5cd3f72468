"""Devices, workers and the training loop."""
