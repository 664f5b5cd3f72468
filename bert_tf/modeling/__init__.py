"""The model: layers, encoder, heads, optimizers."""
