"""Asks a pre-trained model for the missing words.

    python fill_mask.py \\
        --init_checkpoint=/tmp/pretraining_output/release \\
        --text="The capital of France is [MASK]."

prints the most probable words for every [MASK], with their probabilities.
Without --text it reads a sentence a line from the standard input.
"""

import sys
from collections.abc import Iterator

from absl import flags

import bert_tf.quiet_tensorflow  # noqa: F401
from bert_tf import flags as bert_flags
from bert_tf.errors import InputError
from bert_tf.heads import BertPretrainer
from bert_tf.interop.opening import (
    FORMATS,
    compare_configs,
    open_pretrained,
    read_config,
)
from bert_tf.modeling import checkpoint_variables
from bert_tf.tasks.fill_mask import Blank, fill_mask
from bert_tf.text.wordpiece import FullTokenizer, require_fit, source_of
from bert_tf.training.weights import restore

FLAGS = flags.FLAGS

flags.DEFINE_string(
    "init_checkpoint",
    None,
    f"Pre-trained model: {FORMATS}.",
)
flags.DEFINE_string(
    "bert_config_file",
    None,
    "JSON file of the model's shape; bert_config.json beside the checkpoint "
    "if it is not given.",
)
flags.DEFINE_string(
    "vocab_file",
    None,
    "Vocabulary; vocab.txt beside the checkpoint if it is not given.",
)
flags.DEFINE_string("text", None, "Text with one or more [MASK].")
flags.DEFINE_integer("top_k", 5, "Words to show for each blank.")
flags.DEFINE_bool(
    "do_lower_case",
    None,
    "Whether the model is uncased; if not given, as the checkpoint says, or "
    "else true.",
)
flags.DEFINE_bool(
    "strip_accents",
    None,
    "As the vocabulary was made; if not given, as the checkpoint says, or "
    "else as casing.",
)

# Parts of a pre-trained model that fill no blanks.
UNUSED = r"bert/pooler/|cls/seq_relationship/"


def main() -> None:
    """Loads the model and fills every blank of every text."""
    pretrained = open_pretrained(FLAGS.init_checkpoint)
    config = pretrained.config
    if FLAGS.bert_config_file is not None:
        config = read_config(FLAGS.bert_config_file)
    vocab = FLAGS.vocab_file or pretrained.vocab
    _require(config, "bert_config_file", "bert_config.json")
    _require(vocab, "vocab_file", "vocab.txt")
    tokenizer = FullTokenizer(
        vocab,
        _first_known(FLAGS.do_lower_case, pretrained.do_lower_case, True),
        _first_known(FLAGS.strip_accents, pretrained.strip_accents),
    )
    require_fit(tokenizer.vocab, config.vocab_size, source_of(vocab))
    compare_configs(config, pretrained)
    if "cls/predictions/output_bias" not in pretrained.weights:
        raise InputError(
            "expected a model with a masked-LM head, which fills blanks. "
            f"Received: {pretrained.path}, of kind {pretrained.head}"
        )
    model = BertPretrainer(config)
    model.build()
    restore(checkpoint_variables(model), pretrained.weights, UNUSED)
    for text in _texts():
        _show(text, fill_mask(model, tokenizer, text, FLAGS.top_k))


def _require(found: object, flag: str, name: str) -> None:
    if found is None:
        raise InputError(
            f"expected --{flag}, or a released checkpoint with {name} beside "
            f"it. Received: {FLAGS.init_checkpoint}, and there is none"
        )


def _first_known(*values: bool | None) -> bool | None:
    return next((value for value in values if value is not None), None)


def _texts() -> Iterator[str]:
    if FLAGS.text is not None:
        yield FLAGS.text
        return
    for line in sys.stdin:
        if line.strip():
            yield line.strip()


def _show(text: str, blanks: list[Blank]) -> None:
    print(text)
    for number, blank in enumerate(blanks, start=1):
        words = ", ".join(f"{word} ({p:.1%})" for word, p in blank)
        print(f"  [MASK] {number}: {words}")


if __name__ == "__main__":
    bert_flags.run(main, required=["init_checkpoint"])
