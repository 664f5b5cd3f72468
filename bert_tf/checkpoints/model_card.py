"""The README.md beside a saved model: its properties and how to load it."""

import html
from typing import Any

from bert_tf.checkpoints.checkpoint import Pretrained
from bert_tf.checkpoints.huggingface_names import HEADS
from bert_tf.errors import listed
from bert_tf.version import __version__

FILE = "README.md"


def text(
    pretrained: Pretrained, class_name: str, *, is_tf1: bool = False
) -> str:
    """Returns the model card of a model that is written to a folder.

    It has no licence, data or scores, which only the author knows.

    Args:
      pretrained: The model.
      class_name: The name of the model's class in bert_tf.
      is_tf1: Whether the folder has a TF1 checkpoint, which transformers
        cannot load, instead of Hugging Face's files.
    """
    config, head = pretrained.config, pretrained.head
    assert config is not None
    assert head is not None
    size = (
        f"L-{config.num_hidden_layers}_H-{config.hidden_size}"
        f"_A-{config.num_attention_heads}"
    )
    casing = {True: "uncased", False: "cased", None: "casing unknown"}
    rows = {
        "size": f"{size}, {config.vocab_size:,} tokens",
        "casing": casing[pretrained.do_lower_case],
        "labels": listed(pretrained.labels or (), most=20),
        "trained for": (pretrained.problem_type or "").replace("_", " "),
        "longest sequence": pretrained.max_seq_length
        or config.max_position_embeddings,
    }
    library, pipeline = "transformers", HEADS[head].pipeline
    architecture = HEADS[head].architecture
    if head == "encoder" and pretrained.pooling is not None:
        class_name = "TextEmbedder"
        rows["pooling"] = pretrained.pooling
        if pretrained.pooling != "pooled":
            library, pipeline = "sentence-transformers", "sentence-similarity"
            architecture = "SentenceTransformer"
    tokenizer = 'tokenizer = bert_tf.BertTokenizer.from_pretrained("FOLDER")'
    other_library = (
        "The weights are a TF1 checkpoint, bert_model.ckpt, as "
        "google-research/bert saves it."
        if is_tf1
        else f"The class in {library} is {architecture}."
    )
    lines = [
        "---",
        *([] if is_tf1 else [f"library_name: {library}"]),
        *([f"pipeline_tag: {pipeline}"] if pipeline else []),
        "tags:",
        "- bert",
        "---",
        "",
        f"# BERT {size}: {class_name}",
        "",
        "| | |",
        "|---|---|",
        *(f"| {name} | {_cell(x)} |" for name, x in rows.items() if x),
        "",
        f"Written by bert_tf {__version__}. To load it from this folder:",
        "",
        "```python",
        "import bert_tf",
        "",
        f'model = bert_tf.{class_name}.from_pretrained("FOLDER")',
        *([] if pretrained.vocab is None else [tokenizer]),
        "```",
        "",
        other_library,
    ]
    return "\n".join(lines) + "\n"


def _cell(value: Any) -> str:
    """Returns a value as the text of a table cell, with `|` escaped."""
    text = html.escape(" ".join(str(value).split()), quote=False)
    return text.replace("|", "&#124;")
