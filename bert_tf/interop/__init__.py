"""Other people's checkpoints, read and written: Google's, Hugging Face's."""
