"""Text to records and records to batches."""
