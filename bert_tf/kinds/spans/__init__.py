"""Answers to questions, as spans of a context: SQuAD."""
