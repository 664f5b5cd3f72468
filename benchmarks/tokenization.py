"""Tokenization speed, beside the original's tokenizer and Hugging Face's.

    python benchmarks/tokenization.py --output=build/tokenization.json

gives the same lines to `bert_tf.BertTokenizer` in a tf.data pipeline, to the
original's FullTokenizer (`tf-models-official`) and to Hugging Face's
`tokenizers` (encode_batch_fast). Each side is a process with as many cores as
threads. The texts are English, Korean, and a mix of both with words of all
scripts. Small inputs are English: the first lines as one list, for which
`BertTokenizer` is called directly, and the whole file once with a new
tokenizer, for which reading the file and the vocabulary is timed too. Our ids
must be the original's; lines for which `tokenizers` returns other ids are
counted.
"""

import dataclasses
import pathlib
import random
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import comparison
import sides

from bert_tf import cli
from bert_tf.base.options import option
from bert_tf.errors import InputError

OURS = comparison.OURS
ORIGINAL, HUGGINGFACE = "original", "huggingface"
TITLES = {
    OURS: "bert_tf",
    ORIGINAL: "tf-models-official",
    HUGGINGFACE: "tokenizers",
}
NUM_THREADS = (1, 2)
WORDS_PER_LINE = 12
LIST_SIZES = (1, 32, 1000)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenizationConfig(comparison.BenchmarkOptions):
    """Options of this benchmark."""

    data_dir: str = option(
        "Folder with pretraining_text, nsmc and vocab.", default=str(sides.DATA)
    )
    megabytes: float = option(
        "Largest size of each text.", default=2.0, at_least=0
    )


class Text(NamedTuple):
    """The lines of a file, and the vocabulary for them."""

    name: str
    path: pathlib.Path
    vocab_file: pathlib.Path
    do_lower_case: bool

    @property
    def megabytes(self) -> float:
        return self.path.stat().st_size / 1e6

    def request(
        self, least_seconds: float, with_ids: bool = False, **small: Any
    ) -> dict[str, Any]:
        return {
            "text": [str(self.path), str(self.vocab_file), self.do_lower_case],
            "least_seconds": least_seconds,
            "with_ids": with_ids,
            "num_lines": None,
            "once": False,
            **small,
        }

    def inputs(self) -> Iterator[tuple[str, float, dict[str, Any]]]:
        """Yields names, megabytes and what is added to the request."""
        yield self.name, self.megabytes, {}
        if self.name != "English":
            return
        lines = self.path.read_bytes().splitlines(keepends=True)
        for size in LIST_SIZES:
            megabytes = sum(map(len, lines[:size])) / 1e6
            yield f"{self.name}, list of {size}", megabytes, {"num_lines": size}
        whole = {"num_lines": len(lines), "once": True}
        yield f"{self.name}, file once", self.megabytes, whole


def run(config: TokenizationConfig) -> comparison.Comparison:
    """Runs the benchmark."""
    results = comparison.Comparison(
        "Tokenization: strings in, ids out", "MB/s", TITLES
    )
    pythons = {
        OURS: sys.executable,
        ORIGINAL: sides.peer_python(config.pythons, "tf-models-official"),
        HUGGINGFACE: sides.peer_python(config.pythons, "huggingface"),
    }
    with tempfile.TemporaryDirectory() as folder:
        texts = list(_texts(config, pathlib.Path(folder)))
        for threads in NUM_THREADS:
            programs = {
                side: (
                    pythons[side],
                    "tokenizer.py",
                    {"library": TITLES[side], "num_threads": threads},
                )
                for side in TITLES
                # The original uses one thread.
                if side != ORIGINAL or threads == 1
            }
            with sides.started(programs) as peers:
                facts = [compare(text, peers) for text in texts]
                results.facts = results.facts or facts
                cases = [
                    comparison.Case(
                        f"{name}, threads: {threads}",
                        megabytes,
                        dict.fromkeys(
                            peers, text.request(config.least_seconds, **small)
                        ),
                    )
                    for text in texts
                    for name, megabytes, small in text.inputs()
                ]
                comparison.take_turns(results, cases, peers, config)
    return comparison.report(results, config, "tokenization")


def _texts(config: TokenizationConfig, folder: pathlib.Path) -> Iterator[Text]:
    data = pathlib.Path(config.data_dir)
    english = _lines(sorted(data.glob("pretraining_text/*/*.*")))
    korean = _lines([data / "nsmc" / "mini" / "ratings_train.txt"])
    uncased, multilingual = (
        data / "vocab" / f"bert-base-{name}-vocab.txt"
        for name in ("uncased", "multilingual-cased")
    )
    mixed = mix(english, korean, _lines([multilingual]))
    for name, lines, vocab, lower in (
        ("English", english, uncased, True),
        ("Korean", korean, multilingual, False),
        ("mixed", mixed, multilingual, False),
    ):
        path = folder / f"{name}.txt"
        kept = first_megabytes(lines, config.megabytes)
        path.write_text("\n".join(kept) + "\n", encoding="utf-8")
        yield Text(name, path, vocab, lower)


def _lines(paths: Sequence[pathlib.Path]) -> list[str]:
    """Returns the lines of files that are not blank."""
    texts = (path.read_text(encoding="utf-8") for path in paths)
    return [
        line for text in texts for line in text.splitlines() if line.strip()
    ]


def mix(
    english: Sequence[str], korean: Sequence[str], vocabulary: Sequence[str]
) -> list[str]:
    """Returns equal numbers of lines of both languages and of mixed scripts."""
    choice = random.Random(0)
    words = [word for word in vocabulary if not word.startswith("##")]
    lines = []
    for pair in zip(english, korean, strict=False):
        lines += [*pair, " ".join(choice.choices(words, k=WORDS_PER_LINE))]
    return lines


def first_megabytes(lines: Sequence[str], megabytes: float) -> Iterator[str]:
    room = megabytes * 1e6
    for line in lines:
        room -= len(line.encode()) + 1
        if room < 0:
            return
        yield line


def compare(text: Text, peers: Mapping[str, sides.Process]) -> str:
    """Counts the lines whose ids differ; this also warms up the sides.

    Raises:
      InputError: Our ids are not the original's.
    """
    request = text.request(0.0, with_ids=True)
    lines = {name: side.ask(request)["lines"] for name, side in peers.items()}
    differ = {
        name: sum(map(str.__ne__, lines[OURS], theirs))
        for name, theirs in lines.items()
    }
    if differ.get(ORIGINAL):
        raise InputError(
            f"bert_tf and the original give different ids for "
            f"{differ[ORIGINAL]:,} lines of {text.path}."
        )
    return (
        f"{text.name}: {len(lines[OURS]):,} lines, {text.megabytes:.2f} MB, "
        f"{text.vocab_file.name}. The ids of bert_tf are the original's; "
        f"the ids of tokenizers differ for {differ[HUGGINGFACE]:,} lines"
    )


if __name__ == "__main__":
    cli.main(run)
