"""Speed of `predict`, beside sentence-transformers and transformers' pipelines.

    python benchmarks/prediction.py --output=build/prediction.json

gives both sides the weights of MiniLM with the same random heads, and the same
real texts: all of them at once in batches of 32, and one at a time. Before that
both answer all texts, which warms up; the page says how far answers differ. The
last case of each kind is a whole process, which loads the model and answers one
text.
"""

# Before anything that imports TensorFlow.
import bert_tf.quiet_tensorflow

# isort: split
import csv
import dataclasses
import itertools
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import comparison
import keras
import numpy as np
import sides
from serving import HEAD_DEVIATION

import bert_tf
from bert_tf import cli, files
from bert_tf.options import option
from bert_tf.variables import checkpoint_variables

BATCH_SIZE = 32
# How many texts are answered one at a time.
MOST = 200
PEER = "peer"
TITLES = {comparison.OURS: "bert_tf", PEER: "Hugging Face"}


def sst_texts() -> Iterator[str]:
    """Yields texts of SST-2."""
    lines = files.read_text(str(sides.DATA / "glue/SST-2/train.tsv"))
    reader = csv.DictReader(
        lines.splitlines(), delimiter="\t", quoting=csv.QUOTE_NONE
    )
    for row in reader:
        yield row["sentence"].strip()


def squad_pairs() -> Iterator[tuple[str, str]]:
    """Yields questions and contexts of SQuAD."""
    data = files.read_json(str(sides.DATA / "squad/dev-v1.1.json"))["data"]
    for article in data:
        for paragraph in article["paragraphs"]:
            for row in paragraph["qas"]:
                yield row["question"], paragraph["context"]


def conll_sentences() -> Iterator[str]:
    """Yields sentences of CoNLL-2003, with spaces between the words."""
    text = files.read_text(str(sides.DATA / "conll2003/eng.testa"))
    for block in text.split("\n\n"):
        words = [line.split()[0] for line in block.splitlines() if line.strip()]
        if words and words != ["-DOCSTART-"]:
            yield " ".join(words)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of text model, and what it is asked."""

    title: str
    model: type
    texts: Callable[[], Iterator[Any]]
    num_texts: int
    max_seq_length: int
    peer: str = "transformers"
    # Further arguments of the text model.
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    # The variable of its head.
    head: str = "output_weights"


KINDS = {
    "embedding": Kind(
        title="TextEmbedder",
        model=bert_tf.TextEmbedder,
        texts=sst_texts,
        num_texts=3_000,
        max_seq_length=128,
        peer="sentence_transformers",
        head="",
    ),
    "classification": Kind(
        title="TextClassifier",
        model=bert_tf.TextClassifier,
        texts=sst_texts,
        num_texts=3_000,
        max_seq_length=128,
        options={"labels": ["a", "b"]},
    ),
    "question_answering": Kind(
        title="QuestionAnswerer",
        model=bert_tf.QuestionAnswerer,
        texts=squad_pairs,
        num_texts=200,
        max_seq_length=384,
        options={"doc_stride": 128},
        head="cls/squad/output_weights",
    ),
    "tagging": Kind(
        title="TokenTagger",
        model=bert_tf.TokenTagger,
        texts=conll_sentences,
        num_texts=1_000,
        max_seq_length=128,
        options={"labels": ["a", "b", "c"]},
    ),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class PredictionConfig(comparison.BenchmarkOptions):
    """Options of this benchmark."""

    init_checkpoint: str | None = option(
        "Hugging Face folder of the weights. Default: MiniLM.", default=None
    )
    kinds: tuple[str, ...] = option(
        "Kinds of text models. Default: all.", default=()
    )
    share: float = option("Share of the texts to answer.", default=1.0)


def run(config: PredictionConfig) -> comparison.Comparison:
    """Runs the benchmark."""
    chosen = config.chosen(TITLES)
    results = comparison.Comparison(
        "Prediction: texts in, answers out", "texts/s", TITLES
    )
    comparison.require_known("kinds", config.kinds, KINDS)
    for name in config.kinds or KINDS:
        kind = KINDS[name]
        count = max(1, int(kind.num_texts * config.share))
        texts = [*itertools.islice(kind.texts(), count)]
        with tempfile.TemporaryDirectory() as folder:
            checkpoint = config.init_checkpoint or sides.minilm()
            model = write_model(kind, checkpoint, folder)
            programs = {
                side: program_of(config, name, model, side) for side in chosen
            }
            with sides.started(programs) as processes:
                results.facts.append(compared(kind, processes, texts))
                cases = [
                    comparison.Case(
                        f"{kind.title}, {title}",
                        sum(map(len, batches)),
                        dict.fromkeys(processes, request(batches)),
                    )
                    for title, batches in (
                        (f"{len(texts):,} texts", [texts]),
                        ("one at a time", [[text] for text in texts[:MOST]]),
                    )
                ]
                comparison.take_turns(results, cases, processes, config)
                versions = {n: side.versions for n, side in processes.items()}
            once = json.dumps(request([texts[:1]]))
            commands = {
                side: sides.Command(
                    [
                        python,
                        str(sides.PEERS / program),
                        json.dumps(setup),
                        once,
                    ],
                    versions[side],
                )
                for side, (python, program, setup) in programs.items()
            }
            case = comparison.Case(
                f"{kind.title}, load and answer one text",
                1,
                dict.fromkeys(commands, ()),
            )
            comparison.take_turns(results, [case], commands, config)
    return comparison.report(results, config, "prediction")


def write_model(kind: Kind, checkpoint: str, folder: str) -> str:
    """Writes a Hugging Face folder with a random head; returns its path."""
    keras.utils.set_random_seed(0)
    model = kind.model.from_pretrained(
        checkpoint, max_seq_length=kind.max_seq_length, **kind.options
    )
    if not kind.head:
        return checkpoint
    kernel = checkpoint_variables(model.model)[kind.head]
    draw = np.random.default_rng(0)
    kernel.assign(draw.normal(0, HEAD_DEVIATION, kernel.shape))
    model.save_pretrained(folder)
    return folder


def program_of(
    config: PredictionConfig, name: str, model: str, side: str
) -> tuple[str, str, dict[str, Any]]:
    """Returns the interpreter, the program and its setup for a side."""
    kind = KINDS[name]
    is_ours = side == comparison.OURS
    python = (
        sys.executable
        if is_ours
        else sides.peer_python(config.pythons, "pipelines")
    )
    setup = {
        "kind": name,
        "backend": "bert_tf" if is_ours else kind.peer,
        "model": model,
        "max_seq_length": kind.max_seq_length,
        "options": kind.options,
        "batch_size": BATCH_SIZE,
        "num_threads": sides.CORES,
    }
    return python, "text_models.py", setup


def request(
    batches: Sequence[Sequence[Any]], with_answers: bool = False
) -> dict[str, Any]:
    return {"batches": batches, "with_answers": with_answers}


def compared(
    kind: Kind, processes: Mapping[str, sides.Process], texts: Sequence[Any]
) -> str:
    """Lets all sides answer all texts; returns how far the answers differ."""
    ours, *others = (
        side.ask(request([texts], with_answers=True))["answers"]
        for side in processes.values()
    )
    facts = [f"{kind.title}: {len(texts):,} texts"]
    for theirs in others:
        if kind.model in (bert_tf.TextEmbedder, bert_tf.TextClassifier):
            gap = float(np.abs(np.subtract(ours, theirs)).max())
            facts.append(f"numbers differ by at most {gap:.1g}")
        else:
            equal = sum(a == b for a, b in zip(ours, theirs, strict=True))
            facts.append(f"equal answers to {equal:,}")
    return "; ".join(facts)


if __name__ == "__main__":
    cli.main(run)
