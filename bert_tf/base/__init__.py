"""What everything else stands on: files, options, signals, processes."""
