"""BERT on TensorFlow 2 and Keras 3."""
