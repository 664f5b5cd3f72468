"""Models with their tokenizer: strings in, answers out."""
