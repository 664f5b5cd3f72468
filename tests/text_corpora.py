"""Small texts of random words, for tests of data creation.

A word may be followed by digits, each of which is a token.
"""

import gzip
import pathlib

import numpy as np

from bert_tf.corpus.settings import CreationConfig

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


def config_of_two_texts(folder, vocab_file, num_documents, most_sentences):
    """Writes a plain and a compressed text; returns the options of a job."""
    write_text(folder / "a.txt", num_documents)
    write_text(folder / "b.txt.gz", 5, 1, most_sentences)
    return CreationConfig(
        f"{folder}/a.txt,{folder}/b.txt.gz",
        f"{folder}/out/a.tfrecord,{folder}/out/sub/b.tfrecord.gz",
        str(vocab_file),
        max_seq_length=31,
        dupe_factor=3,
    )


def files_in(folder):
    """Returns the bytes of all files in a folder, by their paths in it."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in pathlib.Path(folder).rglob("*")
        if path.is_file()
    }
