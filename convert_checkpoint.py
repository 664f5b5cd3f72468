"""Converts a checkpoint: Google's TF1, Hugging Face's, Keras's, each to each.

    python convert_checkpoint.py \\
        --input=uncased_L-12_H-768_A-12 --output_dir=bert-base \\
        --to=huggingface --verify

reads a TF1 checkpoint (a prefix or a directory; this project's own are of that
format), a Hugging Face folder, `hf://owner/name[@revision]` or a `.keras`
file, and writes a directory with the weights, the configuration and the
vocabulary. It prints what became of every variable; one that nobody can
explain is an error, and then nothing is written. `--verify` runs both ends on
a few probes, in a second for a small model, in a minute for BERT-Large.
"""

import dataclasses

from absl import flags, logging

import bert_tf.quiet_tensorflow  # noqa: F401
from bert_tf import files
from bert_tf import flags as bert_flags
from bert_tf.errors import InputError
from bert_tf.interop import conversion
from bert_tf.interop.opening import FORMATS, open_pretrained, read_config
from bert_tf.interop.pretrained import HEADS, Pretrained
from bert_tf.text.wordpiece import load_vocab
from bert_tf.training.checkpoints import require_plain

FLAGS = flags.FLAGS

flags.DEFINE_string("input", None, f"What to convert: {FORMATS}.")
flags.DEFINE_string("output_dir", None, "Directory to make, new or empty.")
flags.DEFINE_enum(
    "to",
    None,
    conversion.FORMATS,
    "Format to write: google (TF1, which this project trains from), "
    "huggingface (safetensors) or keras (a .keras file).",
)
flags.DEFINE_enum(
    "head",
    None,
    HEADS,
    "Kind of model to write; what the checkpoint is, if not given, which a "
    "TF1 checkpoint of a classifier, tagger or choice does not tell. encoder "
    "leaves every head out.",
)
flags.DEFINE_bool(
    "keep_optimizer",
    False,
    "Keep Adam's slots and the step, with --to=google: training can go on.",
)
flags.DEFINE_list(
    "drop",
    [],
    "Variables that are not BERT's and may be left out: names or patterns, as "
    "in --drop='*/Adam,*/Adam_1,beta?_power'.",
)
flags.DEFINE_bool("verify", False, "Run both ends and compare.")
flags.DEFINE_string(
    "bert_config_file",
    None,
    "JSON file of the model's shape; the one beside the checkpoint if it is "
    "not given.",
)
flags.DEFINE_string(
    "vocab_file",
    None,
    "Vocabulary; the one beside the checkpoint if it is not given.",
)
flags.DEFINE_bool(
    "do_lower_case",
    None,
    "Whether the vocabulary is uncased, where the checkpoint does not say.",
)


def main() -> None:
    """Plans, writes and verifies aside, and reports."""
    planned = conversion.plan(
        _source(), FLAGS.to, FLAGS.head, FLAGS.keep_optimizer, FLAGS.drop
    )
    if FLAGS.to == "google":
        require_plain(FLAGS.output_dir)
    with files.atomic_directory(FLAGS.output_dir) as folder:
        conversion.write(planned, folder)
        checks = _verify(planned, folder) if FLAGS.verify else []
    print(planned)
    _report_companions(planned.target)
    for check in checks:
        print(check)
    print(f"made        {FLAGS.output_dir}")


def _source() -> Pretrained:
    """What to convert, with what the flags add to it."""
    source = open_pretrained(FLAGS.input)
    more: dict[str, object] = {}
    if FLAGS.bert_config_file:
        more["config"] = read_config(FLAGS.bert_config_file)
    if FLAGS.vocab_file:
        more["vocab"] = tuple(load_vocab(FLAGS.vocab_file))
    if FLAGS.do_lower_case is not None:
        more["do_lower_case"] = FLAGS.do_lower_case
    return dataclasses.replace(source, **more)


def _report_companions(target: Pretrained) -> None:
    """Says what went along with the weights."""
    config = target.config
    assert config is not None
    print(
        f"config      {config.num_hidden_layers} layers of "
        f"{config.hidden_size}, {config.num_attention_heads} heads, "
        f"{config.vocab_size} words, {config.hidden_act}"
    )
    if FLAGS.to == "google" and config.hidden_act == "gelu_erf":
        logging.warning(
            "Google's own code knows the tanh form of GELU alone and will "
            "refuse gelu_erf; this project computes it"
        )
    if FLAGS.to == "google" and config.is_left_to_right:
        logging.warning(
            "Google's own code looks both ways whatever bert_config.json says; "
            "this project looks from left to right"
        )
    if target.vocab is None:
        logging.warning("There is no vocabulary: give --vocab_file")
    else:
        casing = {True: "uncased", False: "cased", None: "casing not known"}
        print(
            f"vocabulary  {len(target.vocab)} tokens, "
            f"{casing[target.do_lower_case]}"
        )
    if target.labels:
        print(f"labels      {', '.join(map(repr, target.labels))}")


def _verify(planned: conversion.Conversion, folder: str) -> list:
    """What was compared.

    Raises:
      InputError: Something differs.
    """
    # Imported here: without --verify nothing waits for a model.
    from bert_tf.interop import verification

    checks = verification.verify(planned, folder, FLAGS.output_dir)
    if not verification.has_transformers():
        logging.info(
            "transformers is not installed: Hugging Face's files were run by "
            "this project alone"
        )
    wrong = [str(check) for check in checks if not check.holds]
    if wrong:
        raise InputError(
            f"expected what was written to compute what {FLAGS.input} does. "
            f"Received: {'; '.join(wrong)}; {FLAGS.output_dir} is not made"
        )
    return checks


if __name__ == "__main__":
    bert_flags.run(main, required=["input", "output_dir", "to"])
