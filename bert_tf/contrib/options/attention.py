"""Shows what the heads of a model attend to in a text.

    python visualize_attention.py \\
        --init_checkpoint=uncased_L-12_H-768_A-12/bert_model.ckpt \\
        --text="The cat sat on the mat." --text_b="It was soft." \\
        --output=attention.html

writes a self-contained page for any browser: choose a layer and a head, and
point at a word to see what it attends to. --output=NAME.png draws a picture
instead, of all heads or of --layer and --head. A text that is too long for the
model is an error; texts are never truncated.
"""

import dataclasses
import os

from bert_tf.contrib.attention_page import require_matplotlib
from bert_tf.errors import listed, wrong_value
from bert_tf.jobs.options import checks
from bert_tf.jobs.settings import PretrainedOptions
from bert_tf.options import option

EXTENSIONS = (".html", ".htm", ".png")


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttentionConfig(PretrainedOptions):
    """Options of `visualize_attention.py`."""

    text: str = option("The text, or the first text of a pair.")
    text_b: str | None = option("The second text of a pair.", default=None)
    output: str = option(
        "File to write: a page (.html), or a picture (.png), which needs "
        "matplotlib.",
        default="attention.html",
    )
    layer: int | None = option(
        "Layer that the page shows first, or that the picture shows: 0 is the "
        "first layer, -1 the last. Default: all layers.",
        default=None,
    )
    head: int | None = option(
        "Head, counted in the same way. Default: all heads.", default=None
    )
    join_pieces: bool = option(
        "Whether to show words instead of tokens. The page can switch.",
        default=True,
    )
    special_tokens: bool = option(
        "Whether to show [CLS] and [SEP]. The page can switch.", default=True
    )

    def check(self) -> None:
        if self._extension not in EXTENSIONS:
            raise wrong_value(
                "`output`",
                f"a file name with {listed(EXTENSIONS, last='or')}",
                self.output,
            )
        if self.is_picture:
            require_matplotlib()
        checks.require_model(self, self.init_checkpoint)

    @property
    def is_picture(self) -> bool:
        """Whether to draw a picture, which needs matplotlib."""
        return self._extension == ".png"

    @property
    def _extension(self) -> str:
        return os.path.splitext(self.output)[1].lower()
