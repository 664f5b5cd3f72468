"""Converts checkpoints between Google's, Hugging Face's and Keras's formats.

    python convert_checkpoint.py \\
        --input=uncased_L-12_H-768_A-12 --output_dir=bert-base \\
        --to=huggingface --verify

writes a directory with the weights, the configuration and the vocabulary. The
input is a TF1 checkpoint (a prefix or a directory; bert_tf trains in that
format), a Hugging Face folder, `hf://owner/name[@revision]`, a `.keras` file or
one of Google's models by name. The job reports what became of every variable.
If a variable is unknown, it fails and writes nothing. `--verify` runs both
models on a few inputs and compares their outputs, which takes a second for a
small model and a minute for BERT-Large.
"""

import dataclasses

from absl import logging

from bert_tf.base import files
from bert_tf.base.options import Options, option
from bert_tf.checkpoints.checkpoint import (
    READ_FORMATS,
    WRITTEN_FORMATS,
    Pretrained,
    require_checkpoint,
)
from bert_tf.checkpoints.huggingface_names import HEADS
from bert_tf.errors import InputError
from bert_tf.jobs import settings
from bert_tf.tokenization.vocabulary_file import load_vocab


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConvertCheckpointConfig(Options):
    """Options of `convert_checkpoint.py`."""

    input: str = option(f"Checkpoint to convert: {READ_FORMATS}.")
    output_dir: str = option("Directory to create; new or empty.")
    to: str = option(
        "Format to write: google (TF1, from which bert_tf trains), "
        "huggingface (safetensors) or keras (a .keras file).",
        choices=WRITTEN_FORMATS,
    )
    head: str | None = option(
        "Kind of model to write; encoder leaves out every head. Default: the "
        "kind that the checkpoint records. TF1 checkpoints of classifiers, "
        "taggers and multiple-choice models record it only in bert_tf.json.",
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

    def check(self) -> None:
        if self.keep_optimizer and self.to != "google":
            raise InputError(
                f"`keep_optimizer` needs `to=google`; `to={self.to}` cannot "
                "hold an optimizer."
            )
        if not files.is_remote(self.input):
            require_checkpoint(self.input)
        settings.require_files(self.bert_config_file, self.vocab_file)


def run(config: ConvertCheckpointConfig) -> str:
    """Converts a checkpoint, verifies it with --verify, and prints a report.

    Returns:
      The new folder.
    """
    from bert_tf.checkpoints import conversion
    from bert_tf.checkpoints.pretrained import open_pretrained
    from bert_tf.checkpoints.tf1 import require_plain

    config.check()
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
        if config.verify:
            print(conversion.verify(planned, open_pretrained(folder)))
    print(planned)
    _report_metadata(config, planned.target)
    print(f"made        {config.output_dir}")
    return config.output_dir


def _source(config: ConvertCheckpointConfig) -> Pretrained:
    """Opens the checkpoint and applies the options that describe it."""
    from bert_tf.checkpoints.pretrained import open_pretrained, read_config

    source = open_pretrained(config.input)
    more: dict[str, object] = {}
    if config.bert_config_file:
        more["config"] = read_config(config.bert_config_file)
    if config.vocab_file:
        more["vocab"] = tuple(load_vocab(config.vocab_file))
    if config.do_lower_case is not None:
        more["do_lower_case"] = config.do_lower_case
    return dataclasses.replace(source, **more)


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
            "gelu_erf; bert_tf supports it"
        )
    if config.to == "google" and bert_config.is_left_to_right:
        logging.warning(
            "Google's code ignores attention_direction and attends in both "
            "directions; bert_tf attends from left to right"
        )
    if target.vocab is None:
        logging.warning("No vocabulary was found. Pass `vocab_file`")
    else:
        casing = {True: "uncased", False: "cased", None: "casing unknown"}
        print(
            f"vocabulary  {len(target.vocab)} tokens, "
            f"{casing[target.do_lower_case]}"
        )
    if target.labels:
        print(f"labels      {', '.join(map(repr, target.labels))}")
