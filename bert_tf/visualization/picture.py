"""Attention as a picture, by matplotlib."""

import contextlib
import io
import warnings
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bert_tf.errors import InputError
from bert_tf.visualization.attention import Attention, Word, as_shown

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Blue for the first text and vermilion for the second, which all people can
# tell apart: Okabe and Ito 2008.
ACCENTS = np.array([[0, 114, 178], [213, 94, 0]]) / 255

INK, MUTED, LINE = "#1d1d1f", "#6b6b70", "#d9d8d4"
DOTS_PER_INCH = 150

# With Chinese, Japanese and Korean letters, where they are installed.
FONTS = (
    *("Noto Sans CJK JP", "Noto Sans CJK SC", "Source Han Sans"),
    *("WenQuanYi Zen Hei", "Arial Unicode MS", "Microsoft YaHei"),
    *("Hiragino Sans", "PingFang SC", "Malgun Gothic"),
)

# Most words whose weights are written into the cells, in percent.
MOST_NUMBERED = 16
# Inches of all cells of a head together, of one cell at most and at least,
# and of a head among all heads.
HEAD_WIDTH, WIDEST_CELL, NARROWEST_CELL = 9.0, 0.5, 0.12
THUMBNAIL_WIDTH = 0.85


def require_matplotlib() -> None:
    """Raises InputError where matplotlib is not installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise InputError(
            "expected matplotlib, which draws the picture. Received: "
            f'{error}; pip install "bert-tf[visualize]", or let --output end '
            "in .html"
        ) from None


def draw_picture(
    attention: Attention,
    layer: int | None = None,
    head: int | None = None,
    joined: bool = True,
    special_tokens: bool = True,
) -> bytes:
    """Draws one head, or an overview of several.

    Args:
      attention: What is to be seen.
      layer: The layer, from 0; None for all.
      head: The head, from 0; None for all.
      joined: See `as_shown`.
      special_tokens: See `as_shown`.

    Returns:
      A PNG file.
    """
    weights, words = as_shown(attention, joined, special_tokens)
    layers = _chosen(layer, attention.num_layers)
    heads = _chosen(head, attention.num_heads)
    with _fonts():
        if len(layers) == len(heads) == 1:
            figure = _draw_head(weights[layers[0], heads[0]], words)
        else:
            figure = _draw_overview(weights, words, layers, heads)
        title = f"Attention of {attention.model}: {_named(layer, head)}"
        figure.suptitle(
            _drawable(title), color=INK, fontsize=11, parse_math=False
        )
        file = io.BytesIO()
        figure.savefig(
            file,
            format="png",
            dpi=DOTS_PER_INCH,
            bbox_inches="tight",
            pad_inches=0.2,
        )
    return file.getvalue()


def colours(weights: np.ndarray, segments: Sequence[int]) -> np.ndarray:
    """From white to the accent of the text that is attended to.

    By the square root of the weight: of two dozen words most get some percent,
    which would all look white.

    Args:
      weights: Floats from 0 to 1, [W, W].
      segments: 0 or 1 for each of the W columns.

    Returns:
      Red, green and blue from 0 to 1, floats [W, W, 3].
    """
    strength = np.sqrt(np.clip(weights, 0, 1))[..., np.newaxis]
    return 1 - strength * (1 - ACCENTS[list(segments)])


def _chosen(index: int | None, count: int) -> list[int]:
    return list(range(count)) if index is None else [index]


def _named(layer: int | None, head: int | None) -> str:
    """layer 3, head 5; layer 3, all heads; all layers, head 5; all heads."""
    if layer is None and head is None:
        return "all heads"
    return (
        f"{'all layers' if layer is None else f'layer {layer}'}, "
        f"{'all heads' if head is None else f'head {head}'}"
    )


def _drawable(text: str) -> str:
    """Without halves of surrogate pairs, which matplotlib cannot draw."""
    return text.encode(errors="replace").decode()


def _draw_head(weights: np.ndarray, words: list[Word]) -> "Figure":
    """One head: a row for the word that attends, a column for each other."""
    count = len(words)
    cell = np.clip(HEAD_WIDTH / count, NARROWEST_CELL, WIDEST_CELL)
    size = max(3.0, cell * count)
    figure = _figure(size + 1.4, size + 1.7)
    axes = figure.add_subplot()
    _show(axes, weights, words)
    # Before the labels: those of the other side would be written.
    axes.tick_params(top=True, labeltop=True, bottom=False, labelbottom=False)
    axes.tick_params(length=0, pad=3)
    points = float(np.clip(cell * 36, 4.5, 10))
    style: dict[str, Any] = {
        "fontsize": points,
        "color": INK,
        "parse_math": False,
    }
    labels = [_drawable(word.text) for word in words]
    axes.set_xticks(range(count), labels, rotation=90, **style)
    axes.set_yticks(range(count), labels, **style)
    axes.xaxis.set_label_position("top")
    axes.set_xlabel("is attended to", color=MUTED, fontsize=9)
    axes.set_ylabel("attends", color=MUTED, fontsize=9)
    if count <= MOST_NUMBERED:
        _write_numbers(axes, weights, points * 0.8)
    _add_scale(figure, [axes])
    return figure


def _write_numbers(axes: Any, weights: np.ndarray, points: float) -> None:
    """Writes the percent into each cell that has one at least."""
    for (row, column), weight in np.ndenumerate(weights):
        if weight >= 0.005:
            axes.text(
                column,
                row,
                f"{100 * weight:.0f}",
                ha="center",
                va="center",
                fontsize=points,
                color="white" if weight > 0.4 else INK,
            )


def _draw_overview(
    weights: np.ndarray,
    words: list[Word],
    layers: list[int],
    heads: list[int],
) -> "Figure":
    """All heads: a row for each layer, a column for each head."""
    width, height = len(heads), len(layers)
    figure = _figure(
        max(3.5, width * THUMBNAIL_WIDTH + 0.8), height * THUMBNAIL_WIDTH + 0.9
    )
    grid = figure.subplots(height, width, squeeze=False)
    for row, layer in enumerate(layers):
        for column, head in enumerate(heads):
            axes = grid[row, column]
            _show(axes, weights[layer, head], words)
            axes.set(xticks=[], yticks=[])
            if row == 0:
                axes.set_title(f"head {head}", color=MUTED, fontsize=8)
        grid[row, 0].set_ylabel(f"layer {layer}", color=MUTED, fontsize=8)
    _add_scale(figure, grid.ravel().tolist(), 0.5 if height > 3 else 0.9)
    return figure


def _add_scale(figure: "Figure", axes: list[Any], length: float = 0.5) -> None:
    """Tells at the side which weight is how dark."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LinearSegmentedColormap, PowerNorm

    accent = tuple(ACCENTS[0])
    shades = LinearSegmentedColormap.from_list("weights", ["white", accent])
    bar = figure.colorbar(
        ScalarMappable(PowerNorm(0.5, 0, 1), shades),
        ax=axes,
        shrink=length,
        aspect=30,
        pad=0.02,
    )
    ticks = [0, 0.1, 0.3, 1]
    names = [f"{tick:.0%}" for tick in ticks]
    bar.set_ticks(ticks, labels=names, fontsize=7, color=MUTED)
    bar.ax.tick_params(length=0)
    bar.ax.minorticks_off()
    bar.outline.set_edgecolor(LINE)


def _show(axes: Any, weights: np.ndarray, words: list[Word]) -> None:
    """The cells, with lines where the second text begins."""
    segments = [word.segment for word in words]
    axes.imshow(colours(weights, segments), interpolation="nearest")
    for spine in axes.spines.values():
        spine.set_color(LINE)
    if 1 in segments:
        edge = segments.index(1) - 0.5
        axes.axhline(edge, color=MUTED, linewidth=0.5)
        axes.axvline(edge, color=MUTED, linewidth=0.5)


@contextlib.contextmanager
def _fonts() -> Iterator[None]:
    """Lets matplotlib look for a letter in one font after the other.

    Its own has Latin, Greek, Cyrillic, Hebrew and Arabic; a letter that no
    font has is drawn as a box, and that need not be told for each.
    """
    import matplotlib
    from matplotlib import font_manager

    installed = set(font_manager.get_font_names())
    families = ["DejaVu Sans", *(x for x in FONTS if x in installed)]
    with (
        matplotlib.rc_context({"font.family": families}),
        warnings.catch_warnings(),
    ):
        warnings.filterwarnings("ignore", r"Glyph .* missing")
        yield


def _figure(width: float, height: float) -> "Figure":
    """An empty figure of so many inches, of nobody's global state."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="compressed")
