"""From a model to what a server loads: strings in, answers out."""
