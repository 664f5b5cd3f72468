"""A folder for each kind of task; no kind imports another."""
