"""Labels for the words of a sentence: CoNLL."""
