"""Shows what the heads of a model attend to: the job of visualize_attention.py.

Its options and files are explained in options/attention.py.
"""

# Before anything that imports TensorFlow.
import bert_tf.quiet_tensorflow  # noqa: F401

# isort: split
import os

import numpy as np
from absl import logging
from keras import ops

from bert_tf import files
from bert_tf.contrib.attention_page import (
    AttentionMaps,
    Passage,
    draw_picture,
    read_passage,
    write_page,
)
from bert_tf.contrib.options.attention import AttentionConfig
from bert_tf.errors import wrong_value
from bert_tf.jobs.start import Start, find_start
from bert_tf.modeling import BertModel
from bert_tf.pretrained import load_checkpoint
from bert_tf.tokenization.wordpiece import FullTokenizer


def run(config: AttentionConfig) -> str:
    """Runs the model on a text and writes a page or picture of its attention.

    Returns:
      The path of the file.
    """
    config.check()
    start = find_start(config)
    layer = _index(config, "layer", start.config.num_hidden_layers)
    head = _index(config, "head", start.config.num_attention_heads)
    passage = read_passage(
        FullTokenizer(start.vocab, start.do_lower_case, start.strip_accents),
        config.text,
        config.text_b,
        start.config.max_position_embeddings,
    )
    attention = _attend(config, start, passage)
    options = (config.join_pieces, config.special_tokens)
    if config.is_picture:
        content = draw_picture(attention, layer, head, *options)
    else:
        html = write_page(attention, layer or 0, head or 0, *options)
        content = html.encode()
    with files.atomic_writer(config.output) as file:
        file.write(content)
    logging.info("Wrote %s, %.1f MB", config.output, len(content) / 1e6)
    return config.output


def _index(config: AttentionConfig, name: str, count: int) -> int | None:
    """Returns the number of a layer or head, from 0; None for all."""
    value = getattr(config, name)
    if value is None:
        return None
    if not -count <= value < count:
        raise wrong_value(
            f"`{name}`", f"from 0 to {count - 1}, or from -{count} to -1", value
        )
    return value % count


def _attend(
    config: AttentionConfig, start: Start, passage: Passage
) -> AttentionMaps:
    """Returns the attention of all heads, without dropout."""
    model = BertModel(start.config, output_attentions=True)
    load_checkpoint(model, start.init_checkpoint)
    inputs = {
        "input_ids": np.array([passage.input_ids], np.int32),
        "segment_ids": np.array([passage.segment_ids], np.int32),
    }
    layers = model(inputs, training=False)["attentions"]
    weights = [ops.convert_to_numpy(layer)[0] for layer in layers]
    # OWNER/NAME of a model, or FOLDER/PREFIX of a checkpoint.
    name = "/".join(os.path.normpath(config.init_checkpoint).split("/")[-2:])
    return AttentionMaps(passage, np.stack(weights), name)
