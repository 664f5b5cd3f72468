"""Masked words and next sentences, on records."""
