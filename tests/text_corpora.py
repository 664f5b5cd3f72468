"""Small texts of random words, for tests of data creation.

A word may be followed by digits, each of which is a token.
"""

import gzip

import numpy as np

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[unused1]"]
WORDS = [f"w{chr(97 + i)}" for i in range(26)] + [f"##{i}" for i in range(10)]


def write_text(path, num_documents=60, seed=0, most_sentences=16):
    """Writes documents of at least 2 sentences, separated by blank lines."""
    rng = np.random.default_rng(seed)
    lines = []
    for _ in range(num_documents):
        for _ in range(rng.integers(2, most_sentences + 1)):
            words = rng.choice(WORDS[:26], rng.integers(1, 19))
            digits = rng.choice(["", "", "1", "37"], len(words))
            lines.append(" ".join(np.char.add(words, digits)))
        lines.append("")
    text = "\n".join(lines).encode()
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "wb") as file:
        file.write(text)
    return path
