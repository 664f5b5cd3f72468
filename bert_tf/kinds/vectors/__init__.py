"""Vectors of texts: trained on pairs, or written into files."""
