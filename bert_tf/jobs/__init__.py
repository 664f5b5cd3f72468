"""What each script does, as a function: `run(config)`."""
