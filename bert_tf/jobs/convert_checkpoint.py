"""Converts checkpoints between Google's, Hugging Face's and Keras's formats.

    python convert_checkpoint.py \\
        --input=uncased_L-12_H-768_A-12 --output_dir=bert-base \\
        --to=huggingface --verify

reads a TF1 checkpoint (a prefix or a directory; this project trains in that
format), a Hugging Face folder, `hf://owner/name[@revision]`, a `.keras` file or
one of Google's models by name, and writes a directory with the weights, the
configuration and the vocabulary. It reports what became of every variable. If a
variable is unknown, it fails and writes nothing. `--verify` runs both models on
a few inputs and compares them: a second for a small model, a minute for
BERT-Large.
"""

import dataclasses

from absl import logging

import bert_tf.quiet_tensorflow  # noqa: F401
from bert_tf import cli, files
from bert_tf.errors import InputError
from bert_tf.interop import conversion
from bert_tf.interop.added_words import add_words
from bert_tf.interop.checkpoint import HEADS, Pretrained
from bert_tf.options import Options, option
from bert_tf.pretrained import FORMATS, open_pretrained, read_config
from bert_tf.tokenization.vocabulary_file import load_vocab
from bert_tf.training.checkpoints import require_plain


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConvertCheckpointConfig(Options):
    """Options of `convert_checkpoint.py`."""

    input: str = option(f"Checkpoint to convert: {FORMATS}.")
    output_dir: str = option("Directory to create; new or empty.")
    to: str = option(
        "Format to write: google (TF1, from which this project trains), "
        "huggingface (safetensors) or keras (a .keras file).",
        choices=conversion.FORMATS,
    )
    head: str | None = option(
        "Kind of model to write; encoder leaves out every head. Default: the "
        "kind that the checkpoint records, which a TF1 checkpoint of a "
        "classifier, tagger or multiple-choice model does not.",
        default=None,
        choices=tuple(HEADS),
    )
    keep_optimizer: bool = option(
        "Whether to keep Adam's slots and the step, with --to=google, so that "
        "training can continue.",
        default=False,
    )
    drop: tuple[str, ...] = option(
        "Variables that do not belong to BERT and may be left out: names or "
        "patterns, as in --drop='*/Adam,*/Adam_1,beta?_power'.",
        default=(),
    )
    add_words: str | None = option(
        "Text file with a word per line to append to the vocabulary. The "
        "embedding of a new word is the mean of those of its pieces.",
        default=None,
    )
    verify: bool = option(
        "Whether to run both models and compare their outputs.", default=False
    )
    bert_config_file: str | None = option(
        "JSON file with the model's configuration. Default: the file beside "
        "the checkpoint.",
        default=None,
    )
    vocab_file: str | None = option(
        "Vocabulary file. Default: the file beside the checkpoint.",
        default=None,
    )
    do_lower_case: bool | None = option(
        "Whether the vocabulary is uncased, if the checkpoint does not say.",
        default=None,
    )


def run(config: ConvertCheckpointConfig) -> str:
    """Converts a checkpoint, verifies it and prints a report.

    Returns:
      The new folder.
    """
    planned = conversion.plan(
        _source(config),
        config.to,
        config.head,
        config.keep_optimizer,
        config.drop,
    )
    if config.to == "google":
        require_plain(config.output_dir)
    with files.atomic_directory(config.output_dir) as folder:
        conversion.write(planned, folder)
        checks = _verify(config, planned, folder) if config.verify else []
    print(planned)
    _report_metadata(config, planned.target)
    for check in checks:
        print(check)
    print(f"made        {config.output_dir}")
    return config.output_dir


def _source(config: ConvertCheckpointConfig) -> Pretrained:
    """Opens the checkpoint and applies the options that describe it."""
    source = open_pretrained(config.input)
    more: dict[str, object] = {}
    if config.bert_config_file:
        more["config"] = read_config(config.bert_config_file)
    if config.vocab_file:
        more["vocab"] = tuple(load_vocab(config.vocab_file))
    if config.do_lower_case is not None:
        more["do_lower_case"] = config.do_lower_case
    source = dataclasses.replace(source, **more)
    return add_words(source, config.add_words) if config.add_words else source


def _report_metadata(
    config: ConvertCheckpointConfig, target: Pretrained
) -> None:
    bert_config = target.config
    assert bert_config is not None
    print(
        f"config      {bert_config.num_hidden_layers} layers of "
        f"{bert_config.hidden_size}, {bert_config.num_attention_heads} heads, "
        f"{bert_config.vocab_size} words, {bert_config.hidden_act}"
    )
    if config.to == "google" and bert_config.hidden_act == "gelu_erf":
        logging.warning(
            "Google's code has only the tanh form of GELU and will refuse "
            "gelu_erf; this project supports it"
        )
    if config.to == "google" and bert_config.is_left_to_right:
        logging.warning(
            "Google's code ignores attention_direction and attends in both "
            "directions; this project attends from left to right"
        )
    if target.vocab is None:
        logging.warning("No vocabulary was found. Give --vocab_file")
    else:
        casing = {True: "uncased", False: "cased", None: "casing unknown"}
        print(
            f"vocabulary  {len(target.vocab)} tokens, "
            f"{casing[target.do_lower_case]}"
        )
    if target.labels:
        print(f"labels      {', '.join(map(repr, target.labels))}")


def _verify(
    config: ConvertCheckpointConfig, planned: conversion.Conversion, folder: str
) -> list[str]:
    """Compares the written files with the source; returns a line per check."""
    checks = conversion.verify(planned, open_pretrained(folder))
    if not conversion.has_transformers():
        logging.info(
            "transformers is not installed: Hugging Face's files were checked "
            "by this project only"
        )
    lines, wrong = [], []
    for check in checks:
        lines.append(str(check).replace(folder, config.output_dir))
        if not check.holds:
            wrong.append(lines[-1])
    if wrong:
        raise InputError(
            f"{config.output_dir} was not written: the converted model "
            f"computes something else than {config.input}. {'; '.join(wrong)}"
        )
    return lines


if __name__ == "__main__":
    cli.main(run)
