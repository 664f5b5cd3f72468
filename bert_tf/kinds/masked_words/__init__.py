"""Predicted words for each [MASK]."""
