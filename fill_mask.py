"""Asks a pre-trained model for the missing words.

    python fill_mask.py \\
        --init_checkpoint=/tmp/pretraining_output/release \\
        --text="The capital of France is [MASK]."

prints the most probable words for every [MASK], with their probabilities.
With --text_b it also prints how probable it is that this text follows the
first; blanks may then be in either or in none. Without --text it reads a text,
or a pair as `first ||| second`, a line from the standard input.

--do_export --export_dir=DIR writes the model as a SavedModel for TensorFlow
Serving, which fills the blanks of the texts that it is sent; no text is read.
"""

import sys
from collections.abc import Iterator

from absl import flags

import bert_tf.quiet_tensorflow  # noqa: F401
from bert_tf import flags as bert_flags
from bert_tf.data.text_encoding import TextEncoding
from bert_tf.errors import InputError
from bert_tf.heads import BertPretrainer
from bert_tf.interop.opening import (
    FORMATS,
    compare_configs,
    open_pretrained,
    read_config,
)
from bert_tf.interop.pretrained import Pretrained
from bert_tf.modeling import checkpoint_variables
from bert_tf.serving.export import check_place, export
from bert_tf.serving.pretrained_models import ServedMaskedLM
from bert_tf.tasks.feature_extraction import SEPARATOR, split_pair
from bert_tf.tasks.fill_mask import MASK, fill_mask, next_sentence
from bert_tf.text.wordpiece import FullTokenizer, load_vocab, require_fit
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
flags.DEFINE_string(
    "text", None, "Text with one or more [MASK]; with --text_b, any text."
)
flags.DEFINE_string(
    "text_b", None, "Text of which is asked whether it follows --text."
)
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
bert_flags.define_export_flags()

# Parts of a pre-trained model that fill no blanks.
UNUSED = r"bert/pooler/|cls/seq_relationship/"
# What a model without a next-sentence head lacks one of.
NEXT_SENTENCE = ("bert/pooler/dense/bias", "cls/seq_relationship/output_bias")


def main() -> None:
    """Loads the model, fills every blank and judges every pair."""
    if FLAGS.text_b is not None and FLAGS.text is None:
        raise InputError(
            f"expected --text, which --text_b={FLAGS.text_b!r} may follow. "
            "Received: none"
        )
    _check_export()
    pretrained = open_pretrained(FLAGS.init_checkpoint)
    config = pretrained.config
    if FLAGS.bert_config_file is not None:
        config = read_config(FLAGS.bert_config_file)
    vocab = FLAGS.vocab_file or pretrained.vocab
    _require(config, "bert_config_file", "bert_config.json")
    _require(vocab, "vocab_file", "vocab.txt")
    where = FLAGS.vocab_file or f"the vocabulary of {pretrained.path}"
    words = load_vocab(vocab, where)
    require_fit(words, config.vocab_size, where)
    encoding = TextEncoding(
        tuple(words),
        _first_known(FLAGS.do_lower_case, pretrained.do_lower_case, True),
        _first_known(FLAGS.strip_accents, pretrained.strip_accents),
        # Places behind those that it was trained with have random vectors.
        pretrained.max_seq_length or config.max_position_embeddings,
    )
    compare_configs(config, pretrained)
    if "cls/predictions/output_bias" not in pretrained.weights:
        raise InputError(
            "expected a model with a masked-LM head, which fills blanks. "
            f"Received: {pretrained.path}, of kind {pretrained.head}"
        )
    if pretrained.objective == "causal_lm":
        raise InputError(
            "expected a model that was trained to fill in masked words. "
            f"Received: {pretrained.path}, whose objective is causal_lm: it "
            "says what comes behind a word"
        )
    if FLAGS.do_export:
        check_place(FLAGS.export_dir)
    model = BertPretrainer(config)
    model.build()
    restore(checkpoint_variables(model), pretrained.weights, UNUSED)
    if FLAGS.do_export:
        export(
            ServedMaskedLM(model, encoding, FLAGS.top_k),
            FLAGS.export_dir,
            source=FLAGS.init_checkpoint,
        )
        return
    for place, text, text_b in _texts():
        try:
            if text_b is not None:
                _require_next_sentence(pretrained)
            _show(model, encoding.tokenizer, text, text_b)
        except InputError as error:
            raise InputError(f"{error}{place}") from error


def _check_export() -> None:
    """Sees that an export has a place, and that nothing else is asked."""
    if FLAGS.do_export and FLAGS.text is not None:
        raise InputError("expected --do_export without --text. Received: both")
    if FLAGS.do_export and not FLAGS.export_dir:
        raise InputError(
            "expected --export_dir with --do_export. Received: none"
        )


def _require(found: object, flag: str, name: str) -> None:
    if found is None:
        raise InputError(
            f"expected --{flag}, or a released checkpoint with {name} beside "
            f"it. Received: {FLAGS.init_checkpoint}, and there is none"
        )


def _require_next_sentence(pretrained: Pretrained) -> None:
    # Where it says that it was trained without, there is a random one.
    is_random = pretrained.head == "masked_lm"
    lacks = any(name not in pretrained.weights for name in NEXT_SENTENCE)
    if is_random or lacks:
        raise InputError(
            "expected a model with a next-sentence head for a pair of texts. "
            f"Received: {pretrained.path}, of kind {pretrained.head}"
        )


def _first_known(*values: bool | None) -> bool | None:
    return next((value for value in values if value is not None), None)


def _texts() -> Iterator[tuple[str, str, str | None]]:
    """What is asked: each text or pair, behind the words that say its place.

    Raises:
      InputError: Something is not UTF-8.
    """
    if FLAGS.text is not None:
        yield "", FLAGS.text, FLAGS.text_b
        return
    for number, line in enumerate(sys.stdin.buffer, start=1):
        place = f"line {number} of the standard input"
        # What is not UTF-8 comes as the shell passes it, as halves of pairs.
        text = line.decode("utf-8", errors="surrogateescape")
        _require_text(place, text)
        if text.strip():
            yield f", {place}", *split_pair(text)


def _require_text(place: str, text: str) -> None:
    """Raises InputError for bytes that are no text, which cannot be printed."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        byte = ord(text[error.start]) & 0xFF
        before = text[: error.start][-20:]
        raise InputError(
            f"expected {place} to be UTF-8. Received: byte 0x{byte:02x} behind "
            f"{before!r}"
        ) from error


def _show(
    model: BertPretrainer,
    tokenizer: FullTokenizer,
    text: str,
    text_b: str | None,
) -> None:
    """Prints a text or a pair, and what the model says of it."""
    blanks = []
    if text_b is None or MASK in text or MASK in text_b:
        blanks = fill_mask(model, tokenizer, text, FLAGS.top_k, text_b)
    print(text if text_b is None else f"{text}{SEPARATOR}{text_b}")
    for number, blank in enumerate(blanks, start=1):
        words = ", ".join(f"{word} ({p:.1%})" for word, p in blank)
        print(f"  {MASK} {number}: {words}")
    if text_b is not None:
        follows = next_sentence(model, tokenizer, text, text_b)
        print(f"  next sentence: {follows:.1%}")


if __name__ == "__main__":
    bert_flags.run(main, required=["init_checkpoint"])
