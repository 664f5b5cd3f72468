"""Converts an export for ONNX Runtime or LiteRT.

    python run_classifier.py --task_name=mrpc --data_dir=glue_data/MRPC \\
        --output_dir=/tmp/mrpc_output --do_export

    python convert_saved_model.py --export_dir=/tmp/mrpc_output/export \\
        --output_dir=/tmp/mrpc_onnx --format=onnx --int8

reads the newest version that --do_export has written and creates a folder with
`model.onnx`, the vocabulary, the labels, the model card and a README that says
how to run the model. --int8 adds `model.int8.onnx`; --format=litert writes
`model.tflite` instead. The models compute the export's signature `tokens`, from
token ids to numbers: other runtimes have no strings, so they cannot tokenize.

The job runs all models on a few rows of random words. It prints a table of
their sizes and differences from the export, and adds it to the README. If a
float32 model differs by more than rounding, the job fails and writes nothing.
Converting a model of 6 layers of width 384 takes a minute. Masked language
models and exports in half precision are not supported.
"""

import dataclasses
import importlib.util
import math
import os

from absl import logging

from bert_tf.base import files
from bert_tf.base.options import Options, option
from bert_tf.errors import InputError, missing
from bert_tf.jobs import settings

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

    def check(self) -> None:
        settings.require_files(self.export_dir)
        for package in PACKAGES[self.format]:
            if importlib.util.find_spec(package) is None:
                purpose = f"`format={self.format}`"
                raise missing(purpose, package, extra=self.format)


def run(config: ConvertSavedModelConfig) -> str:
    """Converts an export, compares the models and writes a folder.

    Returns:
      The table of sizes and differences, in Markdown.
    """
    from bert_tf.serving import runtimes
    from bert_tf.serving.export import README

    config.check()
    export = runtimes.open_export(config.export_dir)
    with files.atomic_directory(config.output_dir) as folder:
        runtime = runtimes.RUNTIMES[config.format]
        batches = runtimes.random_rows(export)
        expected = export.run(batches)
        models = runtimes.convert(export, runtime, config.int8)
        table = "| file | MB | largest difference |\n|---|---|---|"
        for name, content in models.items():
            off = runtimes.difference(expected, runtime.run(content, batches))
            # The outputs of an int8 model only have to be finite.
            if not off < (math.inf if "int8" in name else runtimes.TOLERANCE):
                raise InputError(
                    f"{config.output_dir} was not written: the outputs of "
                    f"{name} differ from those of {export.path} by {off:.1e}; "
                    f"the tolerance is {runtimes.TOLERANCE:g}."
                )
            table += f"\n| {name} | {len(content) / 1e6:.1f} | {off:.1e} |"
        readme = runtimes.readme(
            export, runtime, next(iter(models)), batches[0], table
        )
        contents = models | export.assets() | {README: readme.encode()}
        for name, content in contents.items():
            with files.atomic_writer(os.path.join(folder, name)) as file:
                file.write(content)
    print(table)
    logging.info("Converted %s to %s", export.path, config.output_dir)
    return table
