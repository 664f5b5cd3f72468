"""Asks a pre-trained model for the missing words.

    python fill_mask.py \\
        --init_checkpoint=/tmp/pretraining_output/release \\
        --text="The capital of France is [MASK]."

prints the most probable words for every [MASK], with their probabilities.
Without --text it reads a sentence a line from the standard input.
"""

import os
import sys
from collections.abc import Iterator

from absl import flags

import bert_tf.quiet_tensorflow  # noqa: F401
from bert_tf import files
from bert_tf import flags as bert_flags
from bert_tf.config import BertConfig
from bert_tf.errors import InputError
from bert_tf.heads import BertPretrainer
from bert_tf.modeling import checkpoint_variables
from bert_tf.tasks.fill_mask import Blank, fill_mask
from bert_tf.text.wordpiece import FullTokenizer, require_fit
from bert_tf.training import checkpoints

FLAGS = flags.FLAGS

flags.DEFINE_string(
    "init_checkpoint",
    None,
    "Pre-trained checkpoint: its prefix, or the directory that holds it.",
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
flags.DEFINE_bool("do_lower_case", True, "Whether the model is uncased.")
flags.DEFINE_bool(
    "strip_accents", None, "As the vocabulary was made; by default as casing."
)


def main() -> None:
    """Loads the model and fills every blank of every text."""
    prefix = checkpoints.find(FLAGS.init_checkpoint)
    config = BertConfig.from_json_file(
        _beside(prefix, "bert_config_file", "bert_config.json")
    )
    vocab_file = _beside(prefix, "vocab_file", "vocab.txt")
    tokenizer = FullTokenizer(
        vocab_file, FLAGS.do_lower_case, FLAGS.strip_accents
    )
    require_fit(tokenizer.vocab, config.vocab_size, vocab_file)
    model = BertPretrainer(config)
    model.build()
    checkpoints.restore(checkpoint_variables(model), prefix)
    for text in _texts():
        _show(text, fill_mask(model, tokenizer, text, FLAGS.top_k))


def _beside(prefix: str, flag: str, name: str) -> str:
    """The file that a flag names, or the one beside the checkpoint."""
    if FLAGS[flag].value is not None:
        return FLAGS[flag].value
    path = os.path.join(os.path.dirname(prefix), name)
    if not files.exists(path):
        raise InputError(
            f"expected --{flag}, or a released checkpoint with {name} beside "
            f"it. Received: {prefix}, and there is no {path}"
        )
    return path


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
