"""Classes, numbers and choices for a text or a pair of texts."""
