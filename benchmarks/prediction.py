"""Speed of `predict`, beside sentence-transformers and transformers' pipelines.

    python benchmarks/prediction.py --output=build/prediction.json

gives both sides the weights of MiniLM with the same random heads, and the same
real texts: all of them at once in batches of 32, and one at a time. Before that
both answer all texts, which warms up; the page says how far answers differ. The
last case of each kind is a whole process, which loads the model and answers one
text.
"""

# Before anything that imports TensorFlow.
from bert_tf import start_tensorflow

start_tensorflow.quietly()

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
from serving import randomize, request, sentences

import bert_tf
from bert_tf import cli
from bert_tf.base.options import option
from bert_tf.kinds.spans.squad_files import read_questions
from bert_tf.kinds.tags.conll_files import read_conll
from bert_tf.modeling.variables import checkpoint_variables

BATCH_SIZE = 32
# How many texts are answered one at a time.
MOST = 200
PEER = "peer"
TITLES = {comparison.OURS: "bert_tf", PEER: "Hugging Face"}


def sst_texts() -> Iterator[str]:
    """Yields texts of SST-2."""
    for text in sentences(str(sides.DATA / "glue/SST-2/train.tsv")):
        yield text.strip()


def squad_pairs() -> Iterator[tuple[str, str]]:
    """Yields questions and contexts of SQuAD."""
    path = str(sides.DATA / "squad/dev-v1.1.json")
    for question in read_questions(
        path, with_negative=False, needs_answers=False
    ):
        yield question.question, question.context


def conll_sentences() -> Iterator[str]:
    """Yields sentences of CoNLL-2003, with spaces between the words."""
    file = read_conll(str(sides.DATA / "conll2003/eng.testa"))
    for sentence in file.sentences:
        yield " ".join(sentence.words)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of text model, and what it is asked."""

    model: type
    texts: Callable[[], Iterator[Any]]
    num_texts: int
    max_seq_length: int = 128
    peer: str = "transformers"
    # Further arguments of the text model.
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    # The variable of its head.
    head: str = "output_weights"

    @property
    def title(self) -> str:
        return self.model.__name__


KINDS = {
    "embedding": Kind(
        model=bert_tf.TextEmbedder,
        texts=sst_texts,
        num_texts=3_000,
        peer="sentence_transformers",
        head="",
    ),
    "classification": Kind(
        model=bert_tf.TextClassifier,
        texts=sst_texts,
        num_texts=3_000,
        options={"labels": ["a", "b"]},
    ),
    "question_answering": Kind(
        model=bert_tf.QuestionAnswerer,
        texts=squad_pairs,
        num_texts=200,
        max_seq_length=384,
        options={"doc_stride": 128},
        head="cls/squad/output_weights",
    ),
    "tagging": Kind(
        model=bert_tf.TokenTagger,
        texts=conll_sentences,
        num_texts=1_000,
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
    comparison.require_known("kinds", config.kinds, KINDS)
    results = comparison.Comparison(
        "Prediction: texts in, answers out", "texts/s", TITLES
    )
    for name in config.kinds or KINDS:
        kind = KINDS[name]
        count = max(1, int(kind.num_texts * config.share))
        texts = [*itertools.islice(kind.texts(), count)]
        with tempfile.TemporaryDirectory() as folder:
            checkpoint = config.init_checkpoint or sides.minilm()
            model = write_model(kind, checkpoint, folder)
            programs = {
                side: program_of(config, name, model, side)
                for side in config.chosen(TITLES)
            }
            measure(kind, texts, programs, results, config)
    return comparison.report(results, config, "prediction")


# Interpreter, program and setup; see `sides.started`.
Program = tuple[str, str, dict[str, Any]]


def measure(
    kind: Kind,
    texts: Sequence[Any],
    programs: Mapping[str, Program],
    results: comparison.Comparison,
    config: PredictionConfig,
) -> None:
    """Measures loaded models, then whole processes."""
    with sides.started(programs) as processes:
        results.facts.append(compared(kind, processes, texts))
        cases = [
            comparison.Case(
                f"{kind.title}, {title}",
                len(given),
                dict.fromkeys(processes, request(given, size)),
            )
            for title, given, size in (
                (f"{len(texts):,} texts", texts, len(texts)),
                ("one at a time", texts[:MOST], 1),
            )
        ]
        comparison.take_turns(results, cases, processes, config)
    once = json.dumps(request(texts[:1], 1))
    commands = {
        side: sides.Command(
            [python, str(sides.PEERS / program), json.dumps(setup), once],
            processes[side].versions,
        )
        for side, (python, program, setup) in programs.items()
    }
    case = comparison.Case(
        f"{kind.title}, load and answer one text",
        1,
        dict.fromkeys(commands, ()),
    )
    comparison.take_turns(results, [case], commands, config)


def write_model(kind: Kind, checkpoint: str, folder: str) -> str:
    """Writes a Hugging Face folder with a random head; returns its path."""
    keras.utils.set_random_seed(0)
    model = kind.model.from_pretrained(
        checkpoint, max_seq_length=kind.max_seq_length, **kind.options
    )
    if not kind.head:
        return checkpoint
    randomize(checkpoint_variables(model.model)[kind.head])
    model.save_pretrained(folder)
    return folder


def program_of(
    config: PredictionConfig, name: str, model: str, side: str
) -> Program:
    """Returns what `sides.started` starts for a side."""
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


def compared(
    kind: Kind, processes: Mapping[str, sides.Process], texts: Sequence[Any]
) -> str:
    """Lets all sides answer all texts; returns how far the answers differ."""
    ours, *others = (
        side.ask(request(texts, len(texts), True))["answers"]
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
