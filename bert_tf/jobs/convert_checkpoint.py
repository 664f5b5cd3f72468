"""Converts checkpoints to another format: the job of convert_checkpoint.py.

Its options and files are explained in options/convert_checkpoint.py.
"""

import dataclasses

from absl import logging

from bert_tf.base import files
from bert_tf.checkpoints import conversion
from bert_tf.checkpoints.checkpoint import Pretrained
from bert_tf.checkpoints.pretrained import open_pretrained, read_config
from bert_tf.checkpoints.tf1 import require_plain
from bert_tf.jobs.options.convert_checkpoint import ConvertCheckpointConfig
from bert_tf.tokenization.vocabulary_file import load_vocab


def run(config: ConvertCheckpointConfig) -> str:
    """Converts a checkpoint, verifies it and prints a report.

    Returns:
      The new folder.
    """
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
        checks = []
        if config.verify:
            checks = conversion.verify(planned, open_pretrained(folder))
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
