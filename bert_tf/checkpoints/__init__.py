"""Reads and writes checkpoints: TF1, Hugging Face, Keras and others."""
