"""Shows what the heads of a model attend to in a text.

    python visualize_attention.py \\
        --init_checkpoint=uncased_L-12_H-768_A-12/bert_model.ckpt \\
        --text="The cat sat on the mat." --text_b="It was soft." \\
        --output=attention.html

writes one page that needs nothing else, to be opened in any browser: choose a
layer and a head, point at a word to see what it attends to. Without --text_b
it is one text. --output=NAME.png draws a picture instead: of all heads, or of
those that --layer and --head choose. The text is taken as it is; what is too
long for the model is an error.
"""

# Before anything that imports TensorFlow.
import bert_tf.quiet_tensorflow  # noqa: F401

# isort: split
import os

import numpy as np
from absl import flags, logging
from keras import ops

from bert_tf import files
from bert_tf import flags as bert_flags
from bert_tf.errors import InputError
from bert_tf.fine_tuning import command_line
from bert_tf.fine_tuning.start import Start, find_start
from bert_tf.interop.loading import load_checkpoint
from bert_tf.modeling import BertModel
from bert_tf.text.wordpiece import FullTokenizer
from bert_tf.visualization import page, picture
from bert_tf.visualization.attention import Attention, Passage, read_passage

FLAGS = flags.FLAGS

flags.DEFINE_string("text", None, "The text, or the first of a pair.")
flags.DEFINE_string("text_b", None, "The second text of a pair.")
flags.DEFINE_string(
    "output",
    "attention.html",
    "The file to write: a page (.html), or a picture (.png), which takes "
    "matplotlib.",
)
flags.DEFINE_integer(
    "layer",
    None,
    "Layer, 0 the first and -1 the last: the one that the page begins with, "
    "or of the picture; all of them if it is not given.",
)
flags.DEFINE_integer("head", None, "Head, likewise.")
flags.DEFINE_bool(
    "join_pieces",
    True,
    "Whether words are shown, or their pieces; the page can switch.",
)
flags.DEFINE_bool(
    "special_tokens",
    True,
    "Whether [CLS] and [SEP] are shown; the page can switch.",
)
command_line.define_start_flags()

EXTENSIONS = (".html", ".htm", ".png")


def main() -> None:
    """Reads the text, runs the model, and writes what is to be seen."""
    is_picture = _is_picture(FLAGS.output)
    start = find_start(
        FLAGS.init_checkpoint,
        FLAGS.bert_config_file,
        FLAGS.vocab_file,
        command_line.given("do_lower_case"),
        FLAGS.strip_accents,
    )
    config = start.config
    layer = _index("layer", config.num_hidden_layers)
    head = _index("head", config.num_attention_heads)
    passage = read_passage(
        FullTokenizer(start.vocab, start.do_lower_case, start.strip_accents),
        FLAGS.text,
        FLAGS.text_b,
        config.max_position_embeddings,
    )
    attention = _attend(start, passage)
    shown = (FLAGS.join_pieces, FLAGS.special_tokens)
    if is_picture:
        content = picture.draw_picture(attention, layer, head, *shown)
    else:
        html = page.write_page(attention, layer or 0, head or 0, *shown)
        content = html.encode()
    with files.atomic_writer(FLAGS.output) as file:
        file.write(content)
    logging.info("Wrote %s, %.1f MB", FLAGS.output, len(content) / 1e6)


def _is_picture(path: str) -> bool:
    """Whether a picture is to be written; what it takes has to be there."""
    extension = os.path.splitext(path)[1].lower()
    if extension not in EXTENSIONS:
        raise InputError(
            f"expected an --output that ends in {', '.join(EXTENSIONS)}. "
            f"Received: {path!r}"
        )
    if extension != ".png":
        return False
    picture.require_matplotlib()
    return True


def _index(flag: str, count: int) -> int | None:
    """The layer or head that a flag names, from 0."""
    value = FLAGS[flag].value
    if value is None:
        return None
    if not -count <= value < count:
        raise InputError(
            f"expected --{flag} from 0 to {count - 1}, or -1 to {-count} from "
            f"the end. Received: {value}"
        )
    return value % count


def _attend(start: Start, passage: Passage) -> Attention:
    """Runs the model, without dropout."""
    model = BertModel(start.config, output_attentions=True)
    load_checkpoint(model, start.init_checkpoint)
    inputs = {
        "input_ids": np.array([passage.input_ids], np.int32),
        "segment_ids": np.array([passage.segment_ids], np.int32),
    }
    layers = model(inputs, training=False)["attentions"]
    weights = [ops.convert_to_numpy(layer)[0] for layer in layers]
    return Attention(passage, np.stack(weights), _name(FLAGS.init_checkpoint))


def _name(path: str) -> str:
    """The end of a path: OWNER/NAME, or a release's folder and prefix."""
    return "/".join(os.path.normpath(path).split("/")[-2:])


if __name__ == "__main__":
    bert_flags.run(main, required=["init_checkpoint", "text"])
