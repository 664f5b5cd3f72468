"""Strings to ids: the tokenizer in a graph, beside the original's and others.

    python benchmarks/tokenization.py --output=build/tokenization.json

gives the same lines to `bert_tf.BertTokenizer`, in a tf.data pipeline; to the
original's FullTokenizer as `tf-models-official` packages it; and to Hugging
Face's `tokenizers` (encode_batch_fast). Each is a process of its own with as
many cores as threads; they take turns, round by round. Our ids have to be the
original's, line by line; of the other side's the lines that differ are counted.
turns_section.py writes the results into docs/performance.md.

Every side has the texts in the form that its users have them in: tensors of
strings, or Python's strings. They are English, Korean, and mixed: lines of both
and of words in all scripts that the multilingual vocabulary knows. The peers
are installed into virtual environments of their own, once; --peer_python and
--original_python name such as are there. Nothing else should run meanwhile;
what others took is told.
"""

import contextlib
import dataclasses
import pathlib
import random
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence

import benchmark_flags
import turns
import turns_section
from absl import app, flags
from answerers import Answerer, answerer
from places import DATA, PEERS, ROOT
from turns import OURS, Case, Comparison

from bert_tf.tokenization.wordpiece import CONTINUATION

FLAGS = flags.FLAGS
ORIGINAL, HUGGINGFACE = "original", "huggingface"
TITLES = {
    OURS: "bert_tf",
    ORIGINAL: "tf-models-official",
    HUGGINGFACE: "tokenizers",
}
PROGRAMS = {
    OURS: "bert_tf_tokenization.py",
    ORIGINAL: "tf_models_tokenization.py",
    HUGGINGFACE: "huggingface_tokenization.py",
}
# How many times as fast ours should be.
ENGLISH_AIMS = {ORIGINAL: 10.0, HUGGINGFACE: 3.0}
OTHER_AIMS = {ORIGINAL: 3.0, HUGGINGFACE: 1.5}
WORDS_OF_A_LINE = 12
BYTES_PER_MB = 1e6

flags.DEFINE_string(
    "data_dir", str(DATA), "Folder of pretraining_text, nsmc and vocab."
)
flags.DEFINE_float("megabytes", 2.0, "Of each text, at most.", lower_bound=0)
benchmark_flags.define_rounds(5)
flags.DEFINE_float("least_seconds", 1.0, "Of a round of a side.")
flags.DEFINE_list("num_threads", ["1", "2"], "Threads of a side, one by one.")
benchmark_flags.define_output()
benchmark_flags.define_interpreter("peer_python", "huggingface")
benchmark_flags.define_interpreter("original_python", "tf-models-official")


@dataclasses.dataclass(frozen=True)
class Text:
    """Lines in a file, and the vocabulary for them."""

    name: str
    path: pathlib.Path
    vocab_file: pathlib.Path
    do_lower_case: bool
    aims: Mapping[str, float]

    def request(self, with_ids: bool = False) -> dict:
        return {
            "file": str(self.path),
            "vocab_file": str(self.vocab_file),
            "do_lower_case": self.do_lower_case,
            "least_seconds": 0.0 if with_ids else FLAGS.least_seconds,
            "with_ids": with_ids,
        }

    def case(self, num_threads: int) -> Case:
        """The text for as many threads; the original knows one alone."""
        requests = dict.fromkeys(sides_with(num_threads), self.request())
        return Case(
            f"{self.name}, {num_threads} thread{'s' * (num_threads > 1)}",
            self.path.stat().st_size / BYTES_PER_MB,
            requests,
            {side: self.aims[side] for side in requests if side != OURS},
        )


def main() -> None:
    comparison = Comparison.begin(
        "Tokenization: strings in, ids out",
        "MB/s",
        TITLES,
    )

    keep = turns_section.keeper(comparison, FLAGS.output)
    with tempfile.TemporaryDirectory() as folder:
        texts = list(make_texts(pathlib.Path(FLAGS.data_dir), folder))
        for num_threads in map(int, FLAGS.num_threads):
            with contextlib.ExitStack() as stack:
                sides = {
                    side: stack.enter_context(start(side, num_threads, folder))
                    for side in sides_with(num_threads)
                }
                facts = [compare(text, sides) for text in texts]
                comparison.facts = comparison.facts or facts
                cases = [text.case(num_threads) for text in texts]
                turns.take(comparison, cases, sides, FLAGS.rounds, keep)
    print(turns_section.section(comparison))


def make_texts(data: pathlib.Path, folder: str) -> Iterator[Text]:
    """Writes the texts into a folder."""
    english = lines_of(sorted(data.glob("pretraining_text/*/*.*")))
    korean = lines_of([data / "nsmc" / "mini" / "ratings_train.txt"])
    uncased, multilingual = (
        data / "vocab" / f"bert-base-{name}-vocab.txt"
        for name in ("uncased", "multilingual-cased")
    )
    mixed = mix(english, korean, lines_of([multilingual]))
    place = pathlib.Path(folder)
    for name, lines, vocab, lower, aims in (
        ("English", english, uncased, True, ENGLISH_AIMS),
        ("Korean", korean, multilingual, False, OTHER_AIMS),
        ("mixed", mixed, multilingual, False, OTHER_AIMS),
    ):
        path = place / f"{name}.txt"
        path.write_text("\n".join(within(lines)) + "\n", encoding="utf-8")
        yield Text(name, path, vocab, lower, aims)


def lines_of(paths: Sequence[pathlib.Path]) -> list[str]:
    """Lines that hold something.

    Raises:
      SystemExit: There is no such file.
    """
    missing = [path for path in paths if not path.exists()]
    if missing or not paths:
        raise SystemExit(
            f"error: expected texts in --data_dir. Received: {FLAGS.data_dir}"
            f"{', which lacks ' + str(missing[0]) if missing else ''}"
        )
    return [
        line
        for path in paths
        for line in path.read_text(encoding="utf-8").splitlines()
        if line.strip()
    ]


def mix(
    english: Sequence[str], korean: Sequence[str], vocabulary: Sequence[str]
) -> list[str]:
    """As many lines of each language, and of words of all scripts."""
    choice = random.Random(0)
    words = [word for word in vocabulary if not word.startswith(CONTINUATION)]
    lines = []
    for pair in zip(english, korean, strict=False):
        lines += [*pair, " ".join(choice.choices(words, k=WORDS_OF_A_LINE))]
    return lines


def within(lines: Sequence[str]) -> Iterator[str]:
    """The first lines, as many as --megabytes have room for."""
    room = FLAGS.megabytes * BYTES_PER_MB
    for line in lines:
        room -= len(line.encode()) + 1
        if room < 0:
            return
        yield line


def sides_with(num_threads: int) -> list[str]:
    """Those that make use of so many threads."""
    return [side for side in TITLES if num_threads == 1 or side != ORIGINAL]


def start(
    side: str, num_threads: int, folder: str
) -> contextlib.AbstractContextManager[Answerer]:
    return answerer(
        [
            interpreter(side),
            str(PEERS / PROGRAMS[side]),
            f"--num_threads={num_threads}",
        ],
        pathlib.Path(folder) / f"{side}.stderr",
        {"PYTHONPATH": str(ROOT)} if side == OURS else {},
    )


def interpreter(side: str) -> str:
    if side == OURS:
        return sys.executable
    if side == HUGGINGFACE:
        return benchmark_flags.interpreter("peer_python", "huggingface")
    return benchmark_flags.interpreter(
        "original_python", "tf-models-official", on_top=True
    )


def compare(text: Text, sides: Mapping[str, Answerer]) -> str:
    """How many lines have the same ids; it also warms up.

    Raises:
      SystemExit: Ours are not the original's.
    """
    lines = {
        name: side.ask(text.request(with_ids=True))["lines"]
        for name, side in sides.items()
    }
    total = len(lines[OURS])
    differ = {
        name: sum(map(str.__ne__, lines[OURS], theirs))
        for name, theirs in lines.items()
    }
    if differ.get(ORIGINAL):
        raise SystemExit(
            f"error: expected the original's ids for all {total:,} lines of "
            f"{text.path}. Received: others for {differ[ORIGINAL]:,}"
        )
    return (
        f"{text.name}: {total:,} lines, "
        f"{text.path.stat().st_size / BYTES_PER_MB:.2f} MB, "
        f"{text.vocab_file.name}. The ids of bert_tf are the original's; "
        f"tokenizers gives others for {differ[HUGGINGFACE]:,} lines"
    )


if __name__ == "__main__":
    app.run(lambda argv: main())
