"""What all kinds of tasks share."""
