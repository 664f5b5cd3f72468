"""Fine-tuning, whatever the task: where it starts, where it goes, the runs."""
