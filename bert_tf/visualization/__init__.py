"""What goes on inside a model, for the eye."""
