"""Speed of serving: an export of bert_tf, beside transformers and ONNX Runtime.

    python benchmarks/serving.py --output=build/serving.json

gives all sides the weights of MiniLM with a random head. Ours is the SavedModel
of `run_classifier.py --do_export`, in a process with TensorFlow and TensorFlow
Text only. The sides of a precision take turns with the same real texts, in
batches of 32 and one by one, and with long texts. Before that every side
answers all texts: this warms up, and the probabilities must be the same.

bfloat16 is --mixed_precision=bfloat16 for ours; for torch it is autocast, which
is the same, and weights in bfloat16, which is faster and less exact. On
CPUs ONNX Runtime only computes in float32; --variants=onnxruntime,ours measures
float32 only.
"""

# Before anything that imports TensorFlow.
from bert_tf import start_tensorflow

start_tensorflow.quietly()

import csv
import dataclasses
import pathlib
import sys
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
from bert_tf.checkpoints import huggingface
from bert_tf.checkpoints.keras_files import ModelWeights
from bert_tf.checkpoints.pretrained import open_pretrained
from bert_tf.errors import InputError, in_file
from bert_tf.kinds.classification import job as classifier
from bert_tf.modeling.variables import checkpoint_variables

ONE, MANY = 1, 32
# Texts of SST-2 that make a text of MAX_SEQ_LENGTH tokens or more.
JOINED = 8
MAX_SEQ_LENGTH = 128
LABELS = ("0", "1")
# The scale of the random head: wide enough for probabilities from 0 to 1.
HEAD_DEVIATION = 0.2
# How far rounding may move a probability.
MOST_DIFFERENT = {"float32": 1e-4, "bfloat16": 0.1}
# Precision -> side -> its title, what computes ("": ONNX Runtime), and whether
# torch compiles it.
SIDES = {
    "float32": {
        "eager": ("torch", "float32", False),
        "compiled": ("torch, compiled", "float32", True),
        "onnxruntime": ("ONNX Runtime", "", False),
    },
    "bfloat16": {
        "eager_autocast": ("torch, autocast", "autocast", False),
        "eager_bfloat16": ("torch, weights in bfloat16", "bfloat16", False),
        "compiled_autocast": ("torch, autocast, compiled", "autocast", True),
        "compiled_bfloat16": (
            "torch, weights in bfloat16, compiled",
            "bfloat16",
            True,
        ),
    },
}
TITLES = {comparison.OURS: "bert_tf"} | {
    side: title
    for peers in SIDES.values()
    for side, (title, *_) in peers.items()
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServingConfig(comparison.BenchmarkOptions):
    """Options of this benchmark."""

    data_file: str = option(
        "TSV file with a header and a column `sentence`.",
        default=str(sides.DATA / "glue" / "SST-2" / "dev.tsv"),
    )
    init_checkpoint: str | None = option(
        "Hugging Face folder of the weights. Default: MiniLM.", default=None
    )


def run(config: ServingConfig) -> comparison.Comparison:
    """Runs the benchmark."""
    comparison.require_known("variants", config.variants, TITLES)
    texts = read_texts(config.data_file)
    checkpoint = config.init_checkpoint or sides.minilm()
    name = "/".join(pathlib.Path(checkpoint).parts[-2:])
    results = comparison.Comparison(
        "Serving: strings in, labels out",
        "texts/s",
        TITLES,
        facts=[
            f"{name} with a random head; {len(texts)} texts of "
            f"{config.data_file}, at most {MAX_SEQ_LENGTH} tokens, padded to "
            f"the longest of a batch; long texts are {JOINED} of them; cores "
            f"for each side: {sides.CORES}"
        ],
    )
    with tempfile.TemporaryDirectory() as folder:
        weights = f"{folder}/huggingface"
        write_classifier(checkpoint, weights)
        peers = {*config.chosen(TITLES)} - {comparison.OURS}
        for precision, known in SIDES.items():
            if peers and peers.isdisjoint(known):
                continue
            programs = programs_of(config, weights, precision, folder)
            with sides.started(programs) as processes:
                results.facts += compare(processes, texts, precision)
                cases = [
                    comparison.Case(
                        f"{title}, {precision}",
                        len(given),
                        dict.fromkeys(processes, request(given, size)),
                    )
                    for title, given, size in (
                        (f"batches of {MANY}", texts, MANY),
                        ("one text at a time", texts, ONE),
                        ("one long text at a time", joined(texts), ONE),
                    )
                ]
                comparison.take_turns(results, cases, processes, config)
    return comparison.report(results, config, "serving")


def programs_of(
    config: ServingConfig, weights: str, precision: str, folder: str
) -> dict[str, tuple[str, str, dict[str, Any]]]:
    """Exports the model; returns the programs of the sides of a precision."""
    exported = classifier.run(
        classifier.ClassifierConfig(
            task_name="sst-2",
            init_checkpoint=weights,
            max_seq_length=MAX_SEQ_LENGTH,
            mixed_precision=precision,
            output_dir=f"{folder}/{precision}",
            do_export=True,
        )
    ).export
    setup = {
        "model": weights,
        "max_seq_length": MAX_SEQ_LENGTH,
        "num_threads": sides.CORES,
    }
    program = "text_classifier.py"
    ours = {**setup, "backend": "saved_model", "model": exported}
    programs = {comparison.OURS: (sys.executable, program, ours)}
    for side, (_, torch, is_compiled) in SIDES[precision].items():
        if side in config.chosen(TITLES):
            environment = "huggingface" if torch else "onnxruntime"
            python = sides.peer_python(config.pythons, environment)
            more = {
                "backend": "torch" if torch else "onnxruntime",
                "precision": torch,
                "compile": is_compiled,
            }
            programs[side] = python, program, setup | more
    return programs


def read_texts(path: str) -> list[str]:
    """Returns texts for full batches of every size.

    Raises:
      InputError: The texts are too few.
    """
    texts = sentences(path)
    if len(texts) < MANY:
        message = f"expected {MANY} texts or more, found {len(texts)}."
        raise in_file(path, message)
    return texts[: len(texts) // MANY * MANY]


def sentences(path: str) -> list[str]:
    """Returns the column `sentence` of a TSV file with a header."""
    lines = files.read_text(path).splitlines()
    reader = csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
    return [row["sentence"] for row in reader]


def joined(texts: Sequence[str]) -> list[str]:
    """Returns long texts, of `JOINED` texts each."""
    starts = range(0, len(texts), JOINED)
    return [" ".join(texts[start : start + JOINED]) for start in starts]


def write_classifier(checkpoint: str, folder: str) -> None:
    """Writes an encoder with a random head as a Hugging Face folder."""
    encoder = open_pretrained(checkpoint)
    model = bert_tf.BertClassifier(encoder.config, len(LABELS))
    bert_tf.load_checkpoint(model, checkpoint)
    randomize(checkpoint_variables(model)["output_weights"])
    files.makedirs(folder)
    weights = ModelWeights(model, checkpoint)
    huggingface.write(
        folder,
        dataclasses.replace(
            encoder, weights=weights, labels=LABELS, head="classifier"
        ),
    )


def randomize(kernel: keras.Variable) -> None:
    """Gives the kernel of a head the same random values in every run."""
    draw = np.random.default_rng(0)
    kernel.assign(draw.normal(0, HEAD_DEVIATION, kernel.shape))


def request(
    texts: Sequence[str], size: int, with_answers: bool = False
) -> dict[str, Any]:
    batches = [texts[at : at + size] for at in range(0, len(texts), size)]
    return {"batches": batches, "with_answers": with_answers}


def compare(
    processes: Mapping[str, sides.Process],
    texts: Sequence[str],
    precision: str,
) -> list[str]:
    """Compares the answers of all sides, in both batch sizes, with ours.

    Returns:
      A sentence on each peer.

    Raises:
      InputError: The answers do not come from the same model.
    """
    facts, ours = [], None
    for name, side in processes.items():
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
                f"more than {MOST_DIFFERENT[precision]:g}: it is a different "
                "model."
            )
        others = sum(map(str.__ne__, labels, ours[0]))
        facts.append(
            f"{TITLES[name]} ({precision}): probabilities differ from ours by "
            f"at most {gap:.1g}, labels of {others} texts differ"
        )
    return facts


if __name__ == "__main__":
    cli.main(run)
