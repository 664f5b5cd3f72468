"""What is specific to each kind of task."""
