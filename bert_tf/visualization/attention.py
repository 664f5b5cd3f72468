"""A text as pieces and words, and how much each attends to each.

Shapes: L layers, N heads, S pieces, W words. Attentions are those of
`BertModel(output_attentions=True)` for one sequence.
"""

import base64
import contextlib
import dataclasses
import importlib.resources
import io
import json
import re
import unicodedata
import warnings
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bert_tf.errors import InputError
from bert_tf.tokenization.wordpiece import CONTINUATION, FullTokenizer, Token

if TYPE_CHECKING:
    from matplotlib.figure import Figure


# A text as pieces and words, and how much each attends to each.


CLS, SEP, MASK = "[CLS]", "[SEP]", "[MASK]"


@dataclasses.dataclass(frozen=True)
class Word:
    """The pieces of one word, or a special token.

    Attributes:
      text: The word as the text spells it: "Café" for the piece "cafe".
      first: The place of its first piece.
      end: The place behind its last piece.
      segment: 0 in the first text, 1 in the second.
      is_special: Whether it is `[CLS]` or a `[SEP]` between the texts.
      follows_space: Whether the text has white space in front of it.
    """

    text: str
    first: int
    end: int
    segment: int
    is_special: bool = False
    follows_space: bool = True


@dataclasses.dataclass(frozen=True)
class Passage:
    """`[CLS] a [SEP]` or `[CLS] a [SEP] b [SEP]`.

    Attributes:
      pieces: The S pieces as the vocabulary spells them.
      input_ids: Their ids.
      segment_ids: 0 up to the first `[SEP]`, 1 behind it.
      words: The W words: every piece is in one of them, in order.
      directions: "ltr" or "rtl", how each text is to be read.
    """

    pieces: tuple[str, ...]
    input_ids: tuple[int, ...]
    segment_ids: tuple[int, ...]
    words: tuple[Word, ...]
    directions: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Attention:
    """What every head of a model does with a passage.

    Attributes:
      passage: The passage.
      weights: Floats [L, N, S, S]: how much the piece of the third axis
        attends to that of the fourth, over which the sum is 1.
      model: What the model is called.
    """

    passage: Passage
    weights: np.ndarray
    model: str

    @property
    def num_layers(self) -> int:
        """L."""
        return self.weights.shape[0]

    @property
    def num_heads(self) -> int:
        """N."""
        return self.weights.shape[1]


def read_passage(
    tokenizer: FullTokenizer,
    text: str,
    text_b: str | None = None,
    max_pieces: int = 512,
) -> Passage:
    """Cuts one or two texts into pieces, and remembers their words.

    `[MASK]` in a text is the special token, as in `fill_mask.py`. Unlike
    elsewhere nothing is cut off: what is looked at shall be what was given.

    Args:
      tokenizer: The tokenizer that the model was trained with.
      text: The first text.
      text_b: The second, or None.
      max_pieces: Positions of the model.

    Raises:
      InputError: A text is empty, or they are too long for the model.
    """
    texts = [text] if text_b is None else [text, text_b]
    pieces, words = [tokenizer.vocab[CLS]], [Word(CLS, 0, 1, 0, True)]
    for segment, one in enumerate(texts):
        found = _words(_tokens(tokenizer, one))
        if not found:
            raise InputError(
                "expected a text with a word or more. Received: "
                f"{one!r}, of which the tokenizer leaves nothing"
            )
        for word, tokens in _placed(found, one, len(pieces), segment):
            words.append(word)
            pieces += [token.id for token in tokens]
        words.append(_separator(len(pieces), segment))
        pieces.append(tokenizer.vocab[SEP])
    if len(pieces) > max_pieces:
        raise InputError(
            f"expected at most {max_pieces} pieces with [CLS] and [SEP], the "
            f"max_position_embeddings of the model. Received: {len(pieces)}; "
            "give a shorter text"
        )
    return Passage(
        pieces=tuple(tokenizer.convert_ids_to_tokens(pieces)),
        input_ids=tuple(pieces),
        segment_ids=tuple(w.segment for w in words for _ in _places(w)),
        words=tuple(words),
        directions=tuple(map(direction, texts)),
    )


def join_pieces(weights: np.ndarray, words: Iterable[Word]) -> np.ndarray:
    """Makes attention between pieces attention between words.

    Attention to a word is the sum over its pieces, attention from a word the
    mean over them, so that the sum over all words is 1 again. Source: Clark et
    al. 2019, "What Does BERT Look At?", section 4.1.

    Args:
      weights: Floats [..., S, S].
      words: The words of the S pieces.

    Returns:
      Floats [..., W, W].
    """
    spans = [(word.first, word.end) for word in words]
    firsts, ends = map(list, zip(*spans, strict=True))
    to_words = np.add.reduceat(weights, firsts, axis=-1)  # [..., S, W]
    summed = np.add.reduceat(to_words, firsts, axis=-2)  # [..., W, W]
    return summed / np.subtract(ends, firsts)[:, np.newaxis]


def as_shown(
    attention: Attention, joined: bool = True, special_tokens: bool = True
) -> tuple[np.ndarray, list[Word]]:
    """What a picture shows of all heads.

    Args:
      attention: Weights between all S pieces.
      joined: Whether words are shown, or each piece as a word of its own.
      special_tokens: Whether `[CLS]` and `[SEP]` are shown. Without them rows
        add up to less than 1.

    Returns:
      Floats [L, N, W, W] and the W words.
    """
    passage, weights = attention.passage, attention.weights
    if joined:
        words = list(passage.words)
        weights = join_pieces(weights, words)
    else:
        words = [
            dataclasses.replace(
                word, text=passage.pieces[place], first=place, end=place + 1
            )
            for word in passage.words
            for place in _places(word)
        ]
    if not special_tokens:
        kept = [n for n, word in enumerate(words) if not word.is_special]
        weights = weights[..., kept, :][..., kept]
        words = [words[n] for n in kept]
    return weights, words


def direction(text: str) -> str:
    """Returns "rtl" or "ltr", by the first character that has a direction.

    Source: the Unicode Bidirectional Algorithm, rules P2 and P3.
    """
    for character in text:
        kind = unicodedata.bidirectional(character)
        if kind in ("R", "AL"):
            return "rtl"
        if kind == "L":
            break
    return "ltr"


def _tokens(tokenizer: FullTokenizer, text: str) -> Iterator[Token]:
    """The pieces of a text; the tokenizer alone would tear `[MASK]` apart."""
    end = 0
    for part in re.split(f"({re.escape(MASK)})", text):
        start, end = end, end + len(part)
        if part == MASK:
            yield Token(MASK, tokenizer.vocab[MASK], start, end)
            continue
        for token in tokenizer.tokenize_with_offsets(part):
            yield token._replace(
                start=start + token.start, end=start + token.end
            )


def _words(tokens: Iterable[Token]) -> list[list[Token]]:
    """The pieces of each word."""
    words: list[list[Token]] = []
    for token in tokens:
        if words and token.text.startswith(CONTINUATION):
            words[-1].append(token)
        else:
            words.append([token])
    return words


def _placed(
    found: list[list[Token]], text: str, place: int, segment: int
) -> Iterator[tuple[Word, list[Token]]]:
    """The words of a text whose first piece is at `place`."""
    last = 0
    for tokens in found:
        start, end = tokens[0].start, tokens[-1].end
        is_first = last == 0
        between = any(map(str.isspace, text[last:start]))
        word = Word(
            text=text[start:end],
            first=place,
            end=place + len(tokens),
            segment=segment,
            follows_space=is_first or between,
        )
        yield word, tokens
        place, last = word.end, end


def _separator(place: int, segment: int) -> Word:
    return Word(SEP, place, place + 1, segment, is_special=True)


def _places(word: Word) -> range:
    return range(word.first, word.end)


# Attention as a page to look at: one file, which asks nobody for anything.


# Weights are kept as integers, of 16 bits where there are at most so many of
# them: BERT-Base with 128 pieces, and a page of some 4 MB. Of more weights
# the first 12 bits are kept, which are half as many bytes when compressed.
MOST_FINE_WEIGHTS = 3_000_000
FINE_LEVELS, COARSE_LEVELS = 2**16 - 1, 2**12 - 1

_SLOT = re.compile(r"\{\{(facts|weights)\}\}")


def write_page(
    attention: Attention,
    layer: int = 0,
    head: int = 0,
    join_pieces: bool = True,
    special_tokens: bool = True,
) -> str:
    """Makes the page.

    Args:
      attention: What is to be seen.
      layer: The layer that is shown first, from 0.
      head: Its head, from 0.
      join_pieces: Whether words are shown first, or their pieces.
      special_tokens: Whether `[CLS]` and `[SEP]` are shown at first.

    Returns:
      HTML; texts and weights are of ASCII characters in it.
    """
    levels = _levels(attention.weights)
    start = {
        "layer": layer,
        "head": head,
        "joined": join_pieces,
        "specials": special_tokens,
    }
    slots = {
        "facts": _as_script({**_facts(attention, levels), "start": start}),
        "weights": base64.b64encode(pack(attention.weights, levels)).decode(),
    }
    template = importlib.resources.files(__package__).joinpath("page.html")
    # All at once: what is put into one slot is not looked through again.
    return _SLOT.sub(
        lambda slot: slots[slot[1]], template.read_text(encoding="utf-8")
    )


def pack(weights: np.ndarray, levels: int) -> bytes:
    """Rounds weights to multiples of 1/levels and compresses them.

    Args:
      weights: Floats from 0 to 1.
      levels: At most 65535.

    Returns:
      A zlib stream of the high bytes of all integers, then the low bytes: the
      former are nearly all 0, for most weights are small.
    """
    whole = np.rint(np.clip(weights, 0, 1) * levels).astype("<u2")
    low, high = np.ascontiguousarray(whole).view(np.uint8).reshape(-1, 2).T
    return zlib.compress(high.tobytes() + low.tobytes())


def _levels(weights: np.ndarray) -> int:
    return FINE_LEVELS if weights.size <= MOST_FINE_WEIGHTS else COARSE_LEVELS


def _facts(attention: Attention, levels: int) -> dict[str, Any]:
    """All that the page knows beside the weights."""
    passage = attention.passage
    return {
        "model": attention.model,
        "layers": attention.num_layers,
        "heads": attention.num_heads,
        "levels": levels,
        "directions": passage.directions,
        "pieces": passage.pieces,
        "words": [
            {
                "text": word.text,
                "first": word.first,
                "end": word.end,
                "segment": word.segment,
                "special": word.is_special,
                "spaced": word.follows_space,
            }
            for word in passage.words
        ],
    }


def _as_script(facts: dict[str, Any]) -> str:
    """JSON that can stand in a <script>, whatever the texts hold.

    All but ASCII is escaped already, halves of surrogate pairs too. Without
    "<" there is neither an end of the script nor a comment in it.
    """
    return json.dumps(facts).replace("<", "\\u003c")


# Attention as a picture, by matplotlib.


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
