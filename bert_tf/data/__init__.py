"""Tables and record files to batches."""
