"""Speed of serving: an export of bert_tf, beside transformers and ONNX Runtime.

    python benchmarks/serving.py --output=build/serving.json

gives the same weights to all sides: a classifier made of MiniLM and a random
head. Ours is the SavedModel of `bert_tf.serving.export`, in a process with
TensorFlow and TensorFlow Text only. The sides of a precision take turns with
the same real texts, in batches of 1 and of 32, padded to the longest of a
batch. Before that every side answers all texts: this warms up, and the
probabilities must be the same.

bfloat16 is --mixed_precision=bfloat16 for ours; for torch it is autocast, which
is the same, and weights in bfloat16, which is faster and less exact. ONNX
Runtime computes in float32 only on CPUs.
"""

# Before anything that imports TensorFlow.
import bert_tf.quiet_tensorflow

# isort: split

import csv
import dataclasses
import os
import pathlib
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from comparison import (
    OURS,
    Case,
    Comparison,
    ReportOptions,
    publish,
    python_option,
    require_known,
    rounds_option,
    section,
    take_turns,
    threads_option,
)
from minilm import minilm, write_classifier
from sides import (
    DATA,
    PEERS,
    Process,
    limit_cpus,
    peer_python,
    peer_variables,
    run_command,
    started,
    without_compiler,
)

import bert_tf
from bert_tf import cli, files
from bert_tf.errors import InputError, in_file, wrong_value
from bert_tf.options import option

ONE, MANY = 1, 32
# How far rounding may move a probability.
MOST_DIFFERENT = {"float32": 1e-4, "bfloat16": 0.1}


class Peer(NamedTuple):
    """A side that is not ours.

    Attributes:
      title: Its name on the page.
      backend: See peers/serving.py.
      words: More arguments.
    """

    title: str
    backend: str
    words: tuple[str, ...] = ()


AUTOCAST, BFLOAT16 = "--precision=autocast", "--precision=bfloat16"
SIDES = {
    "float32": {
        "eager": Peer("torch", "torch"),
        "compiled": Peer("torch, compiled", "torch", ("--compile",)),
        "onnxruntime": Peer("ONNX Runtime", "onnxruntime"),
    },
    "bfloat16": {
        "eager_autocast": Peer("torch, autocast", "torch", (AUTOCAST,)),
        "eager_bfloat16": Peer(
            "torch, weights in bfloat16", "torch", (BFLOAT16,)
        ),
        "compiled_autocast": Peer(
            "torch, autocast, compiled", "torch", (AUTOCAST, "--compile")
        ),
        "compiled_bfloat16": Peer(
            *("torch, weights in bfloat16, compiled", "torch"),
            (BFLOAT16, "--compile"),
        ),
    },
}
PEER_SIDES = SIDES["float32"] | SIDES["bfloat16"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServingConfig(ReportOptions):
    """Options of this benchmark."""

    data_file: str = option(
        "TSV file with a header.",
        default=str(DATA / "glue" / "SST-2" / "dev.tsv"),
    )
    column: str = option("Column of the texts.", default="sentence")
    num_texts: int | None = option(
        "Number of texts. Default: all.", default=None, at_least=1
    )
    init_checkpoint: str | None = option(
        "Hugging Face folder of the weights. Default: MiniLM.", default=None
    )
    max_seq_length: int = option("Largest number of tokens.", default=128)
    rounds: int = rounds_option(5)
    num_threads: int | None = threads_option()
    precisions: tuple[str, ...] = option(
        "Precisions: float32, bfloat16.", default=tuple(SIDES)
    )
    variants: tuple[str, ...] = option(
        f"Sides beside bert_tf: {', '.join(PEER_SIDES)}.",
        default=tuple(PEER_SIDES),
    )
    peer_python: str | None = python_option("huggingface")
    onnxruntime_python: str | None = python_option("onnxruntime")


def run(config: ServingConfig) -> Comparison:
    """Runs the benchmark."""
    require_known("precisions", config.precisions, SIDES)
    require_known("variants", config.variants, {OURS, *PEER_SIDES})
    threads = limit_cpus(config.num_threads)
    texts = read_texts(config)
    checkpoint = os.path.abspath(config.init_checkpoint or minilm())
    name = "/".join(pathlib.Path(checkpoint).parts[-2:])
    comparison = Comparison(
        "Serving: strings in, labels out",
        "texts/s",
        {OURS: "bert_tf"}
        | {name: peer.title for name, peer in PEER_SIDES.items()},
        facts=[
            f"{name} with a random head; {len(texts)} texts of "
            f"{config.data_file}, at most {config.max_seq_length} tokens, "
            f"padded to the longest of a batch; cores for each side: "
            f"{threads['OMP_NUM_THREADS']}"
        ],
        left_out=without_compiler(
            name
            for name in config.variants
            if name != OURS and "--compile" in PEER_SIDES[name].words
        ),
    )
    with tempfile.TemporaryDirectory() as name:
        models = pathlib.Path(name)
        (models / "huggingface").mkdir()
        write_classifier(checkpoint, str(models / "huggingface"))
        for precision in config.precisions:
            commands = {OURS: _our_command(config, models, precision)}
            for side, peer in SIDES[precision].items():
                if side in config.variants and side not in comparison.left_out:
                    command = _peer_command(config, models, peer, threads)
                    commands[side] = command
            variables = dict.fromkeys(commands, threads)
            with started(commands, variables) as sides:
                comparison.facts += compare(sides, texts, precision)
                cases = [
                    Case(
                        f"batches of {size}, {precision}",
                        len(texts),
                        dict.fromkeys(sides, request(texts, size)),
                    )
                    for size in (MANY, ONE)
                ]
                take_turns(
                    comparison, cases, sides, config.rounds, config.output
                )
    publish(section(comparison), config.page, "serving")
    return comparison


def read_texts(config: ServingConfig) -> list[str]:
    """Returns texts for full batches of every size.

    Raises:
      InputError: The file or the column is missing, or the texts are too few.
    """
    lines = files.read_text(config.data_file).splitlines()
    reader = csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
    titles = reader.fieldnames or []
    if config.column not in titles:
        columns = f"one of {', '.join(titles)}, the columns of --data_file"
        raise wrong_value("--column", columns, config.column)
    texts = [row[config.column] for row in reader][: config.num_texts]
    if len(texts) < MANY:
        message = f"expected {MANY} texts or more, found {len(texts)}."
        raise in_file(config.data_file, message)
    return texts[: len(texts) // MANY * MANY]


def _our_command(
    config: ServingConfig, models: pathlib.Path, precision: str
) -> list[str]:
    """Exports the classifier; returns the command that loads the export."""
    from bert_tf.pretrained import open_pretrained
    from bert_tf.serving.export import export
    from bert_tf.serving.served import ServedClassifier
    from bert_tf.tasks.encoding import TextEncoding

    weights = str(models / "huggingface")
    pretrained = open_pretrained(weights)
    model = bert_tf.BertClassifier(
        pretrained.config,
        len(pretrained.labels),
        dtype="float32" if precision == "float32" else f"mixed_{precision}",
    )
    bert_tf.load_checkpoint(model, weights, may_lack="")
    encoding = TextEncoding(
        pretrained.vocab,
        pretrained.do_lower_case,
        pretrained.strip_accents,
        config.max_seq_length,
    )
    served = ServedClassifier(
        model, encoding, pretrained.labels, "single_label", is_pair=False
    )
    path = export(served, str(models / precision))
    words = ["--backend=saved_model", f"--model={path}"]
    return [sys.executable, "serving.py", *words]


def _peer_command(
    config: ServingConfig,
    models: pathlib.Path,
    peer: Peer,
    threads: Mapping[str, str],
) -> list[str]:
    """Returns the command of a peer; writes its ONNX file if it needs one."""
    words = [
        f"--backend={peer.backend}",
        f"--model={models / 'huggingface'}",
        f"--max_seq_length={config.max_seq_length}",
        f"--num_threads={threads['OMP_NUM_THREADS']}",
        *peer.words,
    ]
    if peer.backend == "torch":
        python = peer_python(config.peer_python, "huggingface")
        return [python, "serving.py", *words]
    python = peer_python(config.onnxruntime_python, "onnxruntime")
    onnx = models / "model.onnx"
    program = str(PEERS / "onnx_export.py")
    flags = [f"--model={models / 'huggingface'}", f"--output={onnx}"]
    variables = {**threads, **peer_variables(models)}
    run_command([python, program, *flags], models, variables)
    return [python, "serving.py", *words, f"--onnx={onnx}"]


def request(
    texts: Sequence[str], size: int, with_answers: bool = False
) -> dict[str, Any]:
    batches = [texts[at : at + size] for at in range(0, len(texts), size)]
    return {"batches": batches, "with_answers": with_answers}


def compare(
    sides: Mapping[str, Process], texts: Sequence[str], precision: str
) -> list[str]:
    """Compares the answers of all sides, in both batch sizes, with ours.

    Returns:
      A sentence on each peer.

    Raises:
      InputError: The answers are not those of the same model.
    """
    facts, ours = [], None
    for name, side in sides.items():
        replies = [side.ask(request(texts, n, True)) for n in (ONE, MANY)]
        labels, probabilities = (
            [row for reply in replies for row in reply[key]]
            for key in ("labels", "probabilities")
        )
        if ours is None:
            ours = labels, probabilities
            continue
        gap = float(np.abs(np.subtract(probabilities, ours[1])).max())
        if not gap <= MOST_DIFFERENT[precision]:
            raise InputError(
                f"The probabilities of {name} differ from ours by {gap:.2g}, "
                f"more than {MOST_DIFFERENT[precision]:g}: it is another model."
            )
        others = sum(map(str.__ne__, labels, ours[0]))
        facts.append(
            f"{PEER_SIDES[name].title} ({precision}): probabilities differ "
            f"from ours by at most {gap:.1g}, labels of {others} texts differ"
        )
    return facts


if __name__ == "__main__":
    cli.main(run)
