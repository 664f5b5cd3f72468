"""From text to pre-training records."""
