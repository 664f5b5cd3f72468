"""What is particular to each kind of task."""
