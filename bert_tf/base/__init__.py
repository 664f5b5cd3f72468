"""Local and remote files, options, signals and processes."""
