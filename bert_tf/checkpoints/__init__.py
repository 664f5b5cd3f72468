"""Weights in files: TF1, Hugging Face, sentence-transformers, Keras."""
