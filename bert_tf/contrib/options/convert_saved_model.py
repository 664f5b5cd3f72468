"""Converts an export for ONNX Runtime or LiteRT, and compares the models.

    python run_classifier.py --task_name=mrpc --data_dir=glue_data/MRPC \\
        --output_dir=/tmp/mrpc_output --do_export

    python convert_saved_model.py --export_dir=/tmp/mrpc_output/export \\
        --output_dir=/tmp/mrpc_onnx --format=onnx --int8 \\
        --eval_file=glue_data/MRPC/dev.tsv --task_name=mrpc

reads the newest version that --do_export has written and creates a folder with
`model.onnx`, with --int8 also `model.int8.onnx`, the vocabulary, the labels and
a README that says how to run the model. --format=litert writes `model.tflite`.
The models compute the export's signature `tokens`, from token ids to numbers:
other runtimes have no strings, so they cannot tokenize.

All models are run on random ids and, with --eval_file, on labelled data: for a
classifier in the format of --task_name, or with a column for each input of the
export; for a tagger in CoNLL format; for question answering in SQuAD format. A
table of sizes, differences and scores is printed and written to the README. For
embeddings it has the mean and the lowest cosine similarity to the export's
embeddings. If a float32 model differs by more than rounding, the job fails and
writes nothing. Converting a model of 6 layers of width 384 takes a minute.
Masked language models and exports in half precision are not supported.
"""

import dataclasses
import importlib.util

from bert_tf.jobs.options import checks
from bert_tf.options import Options, option
from bert_tf.packages import missing
from bert_tf.tasks import custom, datasets

# The packages that convert and run models for other runtimes, by extra.
PACKAGES = {
    "onnx": ("onnx", "onnxruntime", "tf2onnx"),
    "litert": ("ai_edge_litert",),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConvertSavedModelConfig(Options):
    """Options of `convert_saved_model.py`."""

    export_dir: str = option(
        "Folder written by --do_export: one version, or a folder of versions, "
        "of which the newest is used.",
    )
    output_dir: str = option("Directory to create; new or empty.")
    format: str = option(
        "Format to write: onnx for ONNX Runtime, litert for LiteRT (formerly "
        "TensorFlow Lite). Each needs packages: pip install '.[onnx]' or "
        "'.[litert]'.",
        choices=tuple(PACKAGES),
    )
    int8: bool = option(
        "Whether to write a second file with 8-bit weights: a quarter of the "
        "size, and slightly different answers.",
        default=False,
    )
    eval_file: str | None = option(
        "Labelled data on which all models are scored. Default: no scores.",
        default=None,
    )
    task_name: str = option(
        "Classifiers: the format and the metrics of --eval_file, one of "
        f"{', '.join((*datasets.NAMES, custom.NAME))}.",
        default=custom.NAME,
    )
    allow_label_mapping: bool = option(
        "Whether to score an export whose label names differ from the task's; "
        "labels are then matched by position.",
        default=False,
    )
    xnli_language: str = option(
        "XNLI: language of the rows to read.", default="zh"
    )
    text_a_column: str | None = option(
        "custom: column of the text, by name or by number from 0. Default: the "
        "name of the export's first input.",
        default=None,
    )
    text_b_column: str = option(
        "custom: column of the second text of a pair.", default="text_b"
    )
    label_column: str = option(
        "custom: column of the label or labels.", default="label"
    )

    def check(self) -> None:
        if self.task_name.lower() != custom.NAME:
            datasets.find(self.task_name)
        checks.require_files(self.export_dir, self.eval_file)
        for package in PACKAGES[self.format]:
            if importlib.util.find_spec(package) is None:
                purpose = f"`format={self.format}`"
                raise missing(purpose, package, extra=self.format)
