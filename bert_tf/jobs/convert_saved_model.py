"""Converts an export for another runtime: the job of convert_saved_model.py.

Its options and files are explained in options/convert_saved_model.py.
"""

import math
import os

from absl import logging

from bert_tf.base import files
from bert_tf.errors import InputError
from bert_tf.jobs.options.convert_saved_model import ConvertSavedModelConfig
from bert_tf.serving import runtimes
from bert_tf.serving.readme import README
from bert_tf.serving.runtimes import Export


def run(config: ConvertSavedModelConfig) -> str:
    """Converts an export, compares the models and writes a folder.

    Returns:
      The table of sizes and differences, in Markdown.
    """
    config.check()
    export = runtimes.open_export(config.export_dir)
    with files.atomic_directory(config.output_dir) as folder:
        table = _write_models(config, export, folder)
    print(table)
    logging.info("Converted %s to %s", export.path, config.output_dir)
    return table


def _write_models(
    config: ConvertSavedModelConfig, export: Export, folder: str
) -> str:
    """Writes all files; returns the table."""
    runtime = runtimes.RUNTIMES[config.format]
    batches = runtimes.random_rows(export)
    expected = export.run(batches)
    models = runtimes.convert(export, runtime, config.int8)
    table = "| file | MB | largest difference |\n|---|---|---|"
    for name, content in models.items():
        off = runtimes.difference(expected, runtime.run(content, batches))
        # An int8 model may differ by any finite number.
        if not off < (math.inf if "int8" in name else runtimes.TOLERANCE):
            raise InputError(
                f"{config.output_dir} was not written: the outputs of {name} "
                f"differ from those of {export.path} by {off:.1e}; the "
                f"tolerance is {runtimes.TOLERANCE:g}."
            )
        table += f"\n| {name} | {len(content) / 1e6:.1f} | {off:.1e} |"
    readme = runtimes.readme(
        export, runtime, next(iter(models)), batches[0], table
    )
    contents = models | export.assets() | {README: readme.encode()}
    for name, content in contents.items():
        with files.atomic_writer(os.path.join(folder, name)) as file:
            file.write(content)
    return table
