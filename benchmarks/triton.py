"""Exports on Triton Inference Server, beside the same exports without a server.

    python benchmarks/triton.py --output=build/triton.json

serves a classifier and a question model with the weights of MiniLM and random
heads by examples/triton/model.py. 1, 8 and 32 clients ask over HTTP, each one
text at a time. The peer is a process that loads the exports and calls them from
as many threads. Clients and server share the cores.
"""

# Before anything that imports TensorFlow.
from bert_tf import start_tensorflow

start_tensorflow.quietly()

import dataclasses
import json
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import comparison
import keras
import numpy as np
import sides

import bert_tf
from bert_tf import cli
from bert_tf.base import files
from bert_tf.base.options import option

CLIENTS = (1, 8, 32)
NUM_ROWS = 160
TITLES = {
    comparison.OURS: "Triton",
    "saved_model": "the export, without server",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class TritonConfig(comparison.BenchmarkOptions):
    """Options of this benchmark."""

    data_file: str = option(
        "SQuAD file: questions with their contexts.",
        default=str(sides.DATA / "squad" / "dev-v1.1.json"),
    )
    num_rows: int = option(
        "Number of questions.", default=NUM_ROWS, at_least=32
    )


def run(config: TritonConfig) -> comparison.Comparison:
    """Runs the benchmark."""
    questions = read_questions(config.data_file)[: config.num_rows]
    rows = {
        "classifier": [{"text": row["question"]} for row in questions],
        "questions": questions,
    }
    results = comparison.Comparison(
        "Serving with Triton: HTTP requests of several clients",
        "requests/s",
        TITLES,
        facts=[
            f"MiniLM with random heads, float32; {len(questions)} questions "
            f"of {config.data_file}, classified alone or answered from their "
            f"contexts; cores for clients and server: {sides.CORES}",
            "The number in bold is Triton's rate divided by the export's. The "
            "server is another program, so none of its rounds counts as "
            "undisturbed",
        ],
    )
    with tempfile.TemporaryDirectory() as folder:
        models = write_exports(folder)
        python = sides.peer_python(config.pythons, "triton")
        programs = {
            side: (
                python,
                "served_export.py",
                {
                    "backend": "triton" if side == comparison.OURS else side,
                    "models": models,
                    "num_threads": sides.CORES,
                },
            )
            for side in config.chosen(TITLES)
        }
        with sides.started(programs) as processes:
            for model in models:
                results.facts += compare(processes, model, rows[model])
            cases = [
                comparison.Case(
                    f"{model}, clients: {clients}",
                    len(rows[model]),
                    dict.fromkeys(
                        processes, request(model, rows[model], clients)
                    ),
                )
                for model in models
                for clients in CLIENTS
            ]
            comparison.take_turns(results, cases, processes, config)
    return comparison.report(results, config, "triton")


def read_questions(path: str) -> list[dict[str, str]]:
    """Returns the questions of a SQuAD file, each with its context."""
    return [
        {"question": question["question"], "context": paragraph["context"]}
        for article in json.loads(files.read_text(path))["data"]
        for paragraph in article["paragraphs"]
        for question in paragraph["qas"]
    ]


def write_exports(folder: str) -> dict[str, str]:
    """Writes both exports; returns the folder of each."""
    keras.utils.set_random_seed(0)
    path = sides.minilm()
    models = {
        "classifier": bert_tf.TextClassifier.from_pretrained(
            path, labels=["0", "1"]
        ),
        "questions": bert_tf.QuestionAnswerer.from_pretrained(
            path, max_seq_length=384
        ),
    }
    return {
        name: model.export(f"{folder}/{name}", name)
        for name, model in models.items()
    }


def request(
    model: str,
    rows: Sequence[Mapping[str, str]],
    clients: int,
    with_outputs: bool = False,
) -> dict[str, Any]:
    return {
        "model": model,
        "rows": rows,
        "clients": clients,
        "with_outputs": with_outputs,
    }


def compare(
    processes: Mapping[str, sides.Process],
    model: str,
    rows: Sequence[Mapping[str, str]],
) -> list[str]:
    """Returns a sentence on how the outputs of the sides differ.

    Triton answers requests that arrive together in one batch, so that rounding
    differs.
    """
    asked = request(model, rows, max(CLIENTS), with_outputs=True)
    replies = [side.ask(asked)["outputs"] for side in processes.values()]
    if len(replies) < 2:
        return []
    gap, others = 0.0, 0
    for ours, theirs in zip(*replies, strict=True):
        for name, values in ours.items():
            if isinstance(values[0], float):
                gap = max(gap, np.abs(np.subtract(values, theirs[name])).max())
        texts = [name for name in ("label", "answer") if name in ours]
        others += any(ours[name] != theirs[name] for name in texts)
    return [
        f"{model}: numbers of the two sides differ by at most {gap:.1g}, "
        f"the answers to {others} of {len(rows)} requests differ"
    ]


if __name__ == "__main__":
    cli.main(run)
