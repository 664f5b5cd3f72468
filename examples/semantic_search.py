"""Searches texts by meaning, and plots their embeddings.

    python examples/semantic_search.py --query="falling down a hole" \\
        --plot=space.png alice.txt peter_pan.txt

Prints the passages whose vectors have the highest cosines with the vector of
the query. A passage ends at a blank line; with --by_line each line is one. The
picture shows all passages in the two directions in which they vary most (PCA),
a colour for each file, and numbers the ones that were found.

The model is one of sentence-transformers, by default all-MiniLM-L6-v2 from the
Hugging Face Hub, or any other BERT, such as the release of run_embeddings.py.
Two cores need about a minute for a book. The picture needs matplotlib.
"""

from bert_tf import start_tensorflow

start_tensorflow.quietly()

import argparse
import pathlib
import re
import sys
import textwrap

import numpy as np

import bert_tf

MODEL = "hf://sentence-transformers/all-MiniLM-L6-v2"


def passages_of(path: str, by_line: bool) -> list[str]:
    """Returns the passages of a file, each in one line."""
    try:
        text = pathlib.Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise bert_tf.InputError(f"{path} is not UTF-8: {error}") from None
    parts = text.split("\n") if by_line else re.split(r"\n\s*\n", text)
    return [" ".join(part.split()) for part in parts if part.strip()]


def unit(vectors: np.ndarray) -> np.ndarray:
    """Returns vectors [..., H] with length 1."""
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def draw(path, names, sources, vectors, query, query_vector, best) -> None:
    """Writes a picture of the vectors of passages, float32 [n, H].

    `sources` are the numbers of the files with these names, [n]; `best` are the
    numbers of the passages that were found.
    """
    from matplotlib.figure import Figure

    center = vectors.mean(axis=0)
    _, sizes, directions = np.linalg.svd(vectors - center, full_matrices=False)
    shares = sizes[:2] ** 2 / np.sum(sizes**2)
    points = (vectors - center) @ directions[:2].T
    figure = Figure(figsize=(8, 7), layout="constrained")
    axes = figure.subplots()
    for number, name in enumerate(names):
        x, y = points[sources == number].T
        axes.scatter(x, y, s=9, alpha=0.5, linewidths=0, label=name)
    x, y = (query_vector - center) @ directions[:2].T
    axes.scatter(x, y, s=200, c="black", marker="*", edgecolors="white")
    box = {"boxstyle": "circle", "facecolor": "white", "edgecolor": "black"}
    for rank, point in enumerate(points[best], 1):
        axes.annotate(str(rank), point, ha="center", va="center", bbox=box)
    axes.set_title(f"\u2605 {query}", parse_math=False)
    axes.set_xlabel(f"first direction ({shares[0]:.0%} of the variance)")
    axes.set_ylabel(f"second direction ({shares[1]:.0%})")
    figure.legend(loc="outside lower center", ncols=4, markerscale=3)
    try:
        figure.savefig(path, dpi=120)
    except ValueError as error:
        raise bert_tf.InputError(f"--plot={path}: {error}") from None


def main() -> None:
    """Reads the files, searches and draws."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", nargs="+", help="text files, in UTF-8")
    parser.add_argument("--query", required=True, help="what to search for")
    parser.add_argument("--init_checkpoint", default=MODEL)
    parser.add_argument("--top_k", type=int, default=5)
    parser.add_argument("--by_line", action="store_true")
    parser.add_argument("--plot", help="the picture to write, such as a.png")
    options = parser.parse_args()
    found = [passages_of(path, options.by_line) for path in options.files]
    passages = [text for texts in found for text in texts]
    if options.plot and len(set(passages)) < 3:
        parser.error("--plot needs three passages; see also --by_line.")
    model = bert_tf.TextEmbedder.from_pretrained(options.init_checkpoint)
    vectors = unit(model.predict(passages))
    query = unit(model.predict(options.query))
    cosines = vectors @ query
    best = np.argsort(-cosines)[: max(options.top_k, 0)]
    for rank, number in enumerate(best, 1):
        text = textwrap.shorten(passages[number], 200, placeholder=" ...")
        print(f"{rank}. {cosines[number]:.3f}  {text}")
    if options.plot:
        sources = np.repeat(np.arange(len(found)), [*map(len, found)])
        names = [pathlib.Path(path).stem for path in options.files]
        draw(options.plot, names, sources, vectors, options.query, query, best)


if __name__ == "__main__":
    try:
        main()
    except (ImportError, OSError, bert_tf.InputError) as error:
        sys.exit(f"semantic_search.py: error: {error}")
