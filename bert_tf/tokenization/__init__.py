"""Tokenization and packing, in Python and in a graph."""
