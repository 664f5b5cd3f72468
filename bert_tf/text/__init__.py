"""Tokenization: one definition, in Python and inside a TensorFlow graph."""
