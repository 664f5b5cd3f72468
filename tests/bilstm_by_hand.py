"""Bidirectional LSTMs in NumPy, position by position. Not a test."""

import numpy as np


def tagger_logits(x, lengths, weights, num_lstms=2):
    """Computes a tagger's logits for vectors, sentence by sentence.

    Args:
      x: Floats [B, S, W].
      lengths: The length of each sentence, without padding.
      weights: The head's weights, by their names in the head.
      num_lstms: The number of stacked LSTMs.

    Returns:
      For each sentence, floats [length, C].
    """
    return [
        _scores(sentence[:length].astype(float), weights, num_lstms)
        for sentence, length in zip(x, lengths, strict=True)
    ]


def _scores(x, weights, num_lstms):
    for number in range(num_lstms):
        x = bilstm(x, weights, f"bilstm_{number}")
    return x @ weights["output_weights"].T + weights["output_bias"]


def bilstm(x, weights, scope):
    """The outputs of both directions, [S, 2 L], of vectors [S, W]."""
    forward, backward = (
        {
            name: weights[f"{scope}/{way}_lstm/lstm_cell/{name}"]
            for name in ("kernel", "recurrent_kernel", "bias")
        }
        for way in ("forward", "backward")
    )
    there, back = _lstm(x, **forward), _lstm(x[::-1], **backward)[::-1]
    return np.concatenate([there, back], axis=-1)


def _lstm(x, kernel, recurrent_kernel, bias):
    """The outputs [S, L]; Hochreiter and Schmidhuber 1997, with forget gates.

    The gates are in Keras's order: input, forget, candidate, output.
    """
    h = c = np.zeros(len(recurrent_kernel))
    outputs = []
    for place in x:
        z = place @ kernel + h @ recurrent_kernel + bias
        enter, forget, candidate, leave = np.split(z, 4)
        c = _sigmoid(forget) * c + _sigmoid(enter) * np.tanh(candidate)
        h = _sigmoid(leave) * np.tanh(c)
        outputs.append(h)
    return np.stack(outputs)


def _sigmoid(x):
    return 1 / (1 + np.exp(-x))
