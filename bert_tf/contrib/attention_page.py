"""Attention as an HTML page and as a picture.

Shapes: L layers, N heads, S tokens, W words. Attention weights come from
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

from bert_tf.errors import InputError, wrong_value
from bert_tf.packages import missing
from bert_tf.tokenization.vocabulary_file import CONTINUATION
from bert_tf.tokenization.wordpiece import FullTokenizer, Token

if TYPE_CHECKING:
    from matplotlib.figure import Figure


CLS, SEP, MASK = "[CLS]", "[SEP]", "[MASK]"


@dataclasses.dataclass(frozen=True)
class Word:
    """The tokens of one word, or a special token."""

    text: str  # As in the text: "Café" for the token "cafe".
    first: int  # The position of its first token.
    end: int  # The position after its last token.
    segment: int  # 0 in the first text, 1 in the second.
    is_special: bool = False  # Whether it is `[CLS]` or an added `[SEP]`.
    follows_space: bool = True


@dataclasses.dataclass(frozen=True)
class Passage:
    """`[CLS] a [SEP]` or `[CLS] a [SEP] b [SEP]`.

    Attributes:
      pieces: The S tokens of the vocabulary.
      input_ids: Their ids.
      segment_ids: 0 up to the first `[SEP]`, then 1.
      words: The W words in order; each token belongs to one.
      directions: "ltr" or "rtl", the reading direction of each text.
    """

    pieces: tuple[str, ...]
    input_ids: tuple[int, ...]
    segment_ids: tuple[int, ...]
    words: tuple[Word, ...]
    directions: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class AttentionMaps:
    """The attention weights that a model computes for a passage.

    Attributes:
      weights: Floats [L, N, S, S]: how much the token on the third axis attends
        to the token on the fourth; sums to 1 over the fourth.
      model: The name of the model.
    """

    passage: Passage
    weights: np.ndarray
    model: str

    @property
    def num_layers(self) -> int:
        return self.weights.shape[0]

    @property
    def num_heads(self) -> int:
        return self.weights.shape[1]


def read_passage(
    tokenizer: FullTokenizer,
    text: str,
    text_b: str | None = None,
    max_pieces: int = 512,
) -> Passage:
    """Tokenizes one or two texts and finds their words.

    `[MASK]` in a text is the special token, as in `fill_mask.py`. More than
    `max_pieces` tokens raise an error instead of being truncated.

    Raises:
      InputError: If a text has no words, or the texts are too long.
    """
    texts = [text] if text_b is None else [text, text_b]
    pieces, words = [tokenizer.vocab[CLS]], [Word(CLS, 0, 1, 0, True)]
    for segment, one in enumerate(texts):
        tokens_of_words = _words(_tokens(tokenizer, one))
        if not tokens_of_words:
            raise wrong_value("A text", "at least one word", one)
        for word, tokens in _tokens_by_word(
            tokens_of_words, one, len(pieces), segment
        ):
            words.append(word)
            pieces += [token.id for token in tokens]
        end = len(pieces)
        words.append(Word(SEP, end, end + 1, segment, is_special=True))
        pieces.append(tokenizer.vocab[SEP])
    if len(pieces) > max_pieces:
        raise InputError(
            f"The text has {len(pieces)} tokens with [CLS] and [SEP], but "
            f"max_position_embeddings is {max_pieces}. Shorten the text."
        )
    return Passage(
        pieces=tuple(tokenizer.convert_ids_to_tokens(pieces)),
        input_ids=tuple(pieces),
        segment_ids=tuple(
            w.segment for w in words for _ in range(w.first, w.end)
        ),
        words=tuple(words),
        directions=tuple(map(direction, texts)),
    )


def join_pieces(weights: np.ndarray, words: Iterable[Word]) -> np.ndarray:
    """Maps attention between tokens to attention between words, [..., W, W].

    Attention to a word is the sum over its tokens, and attention from a word
    the mean over them, so rows still sum to 1. Source: Clark et al. 2019, "What
    Does BERT Look At?", section 4.1.

    Args:
      weights: Floats [..., S, S].
      words: The words of the S tokens.
    """
    spans = [(word.first, word.end) for word in words]
    firsts, ends = map(list, zip(*spans, strict=True))
    to_words = np.add.reduceat(weights, firsts, axis=-1)  # [..., S, W]
    summed = np.add.reduceat(to_words, firsts, axis=-2)  # [..., W, W]
    return summed / np.subtract(ends, firsts)[:, np.newaxis]


def as_shown(
    attention: AttentionMaps, joined: bool = True, special_tokens: bool = True
) -> tuple[np.ndarray, list[Word]]:
    """Returns the weights and words to show.

    Args:
      attention: Weights between all S tokens.
      joined: Whether to show words instead of tokens.
      special_tokens: Whether to show `[CLS]` and `[SEP]`. Without them, rows
        sum to less than 1.

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
                word, text=passage.pieces[n], first=n, end=n + 1
            )
            for word in passage.words
            for n in range(word.first, word.end)
        ]
    if not special_tokens:
        positions = [n for n, word in enumerate(words) if not word.is_special]
        weights = weights[..., positions, :][..., positions]
        words = [words[n] for n in positions]
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
    """Yields the tokens of a text, in which `[MASK]` is one token."""
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
    """Groups tokens by word."""
    words: list[list[Token]] = []
    for token in tokens:
        if words and token.text.startswith(CONTINUATION):
            words[-1].append(token)
        else:
            words.append([token])
    return words


def _tokens_by_word(
    tokens_of_words: list[list[Token]], text: str, place: int, segment: int
) -> Iterator[tuple[Word, list[Token]]]:
    """Yields the words of a text; its first token is at position `place`."""
    last = 0
    for tokens in tokens_of_words:
        start, end = tokens[0].start, tokens[-1].end
        is_first = last == 0
        has_space = any(map(str.isspace, text[last:start]))
        word = Word(
            text=text[start:end],
            first=place,
            end=place + len(tokens),
            segment=segment,
            follows_space=is_first or has_space,
        )
        yield word, tokens
        place, last = word.end, end


# The page: one HTML file that loads nothing.

# Weights are rounded to 16 bits up to this number of weights: BERT-Base with
# 128 tokens, a page of about 4 MB. More weights are rounded to 12 bits, which
# compress to half the size.
MOST_FINE_WEIGHTS = 3_000_000
FINE_LEVELS, COARSE_LEVELS = 2**16 - 1, 2**12 - 1

_SLOT = re.compile(r"\{\{(facts|weights)\}\}")


def write_page(
    attention: AttentionMaps,
    layer: int = 0,
    head: int = 0,
    join_pieces: bool = True,
    special_tokens: bool = True,
) -> str:
    """Returns the HTML page, in which texts and weights are ASCII.

    Args:
      attention: The attention weights.
      layer: The layer to show first, from 0.
      head: The head to show first, from 0.
      join_pieces: Whether to show words first, or tokens.
      special_tokens: Whether to show `[CLS]` and `[SEP]` first.
    """
    is_fine = attention.weights.size <= MOST_FINE_WEIGHTS
    levels = FINE_LEVELS if is_fine else COARSE_LEVELS
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
    template = importlib.resources.files(__package__).joinpath(
        "attention_page.html"
    )
    # In one pass, so that the contents of slots are not searched for slots.
    return _SLOT.sub(
        lambda slot: slots[slot[1]], template.read_text(encoding="utf-8")
    )


def pack(weights: np.ndarray, levels: int) -> bytes:
    """Rounds weights to multiples of 1/levels and compresses them.

    Args:
      weights: Floats from 0 to 1.
      levels: At most 65535.

    Returns:
      A zlib stream of the high bytes of all integers, then the low bytes. Most
      high bytes are 0, since most weights are small.
    """
    whole = np.rint(np.clip(weights, 0, 1) * levels).astype("<u2")
    low, high = np.ascontiguousarray(whole).view(np.uint8).reshape(-1, 2).T
    return zlib.compress(high.tobytes() + low.tobytes())


def _facts(attention: AttentionMaps, levels: int) -> dict[str, Any]:
    """Returns the data of the page except the weights."""
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
    """Returns JSON that is safe inside <script> for any text.

    `json.dumps` escapes all but ASCII, including halves of surrogate pairs.
    Without "<", the text can neither end the script nor start a comment.
    """
    return json.dumps(facts).replace("<", "\\u003c")


# The picture, by matplotlib.

# Blue for the first text and vermilion for the second, which color-blind people
# can distinguish (Okabe and Ito 2008).
ACCENTS = np.array([[0, 114, 178], [213, 94, 0]]) / 255

INK, MUTED, LINE = "#1d1d1f", "#6b6b70", "#d9d8d4"
DOTS_PER_INCH = 150

# Fonts with Chinese, Japanese and Korean characters, if installed.
FONTS = (
    *("Noto Sans CJK JP", "Noto Sans CJK SC", "Source Han Sans"),
    *("WenQuanYi Zen Hei", "Arial Unicode MS", "Microsoft YaHei"),
    *("Hiragino Sans", "PingFang SC", "Malgun Gothic"),
)

# The largest number of words for which cells show their weights in percent.
MOST_NUMBERED = 16
# Sizes in inches. A thumbnail is a head in the overview.
HEAD_WIDTH, WIDEST_CELL, NARROWEST_CELL = 9.0, 0.5, 0.12
THUMBNAIL_WIDTH = 0.85


def require_matplotlib() -> None:
    """Raises InputError if matplotlib is not installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise missing(
            "A picture",
            f"matplotlib ({error})",
            "visualize",
            advice=", or write a page with `output=FILE.html`",
        ) from None


def draw_picture(
    attention: AttentionMaps,
    layer: int | None = None,
    head: int | None = None,
    joined: bool = True,
    special_tokens: bool = True,
) -> bytes:
    """Returns a picture, as PNG, of one head, or an overview of several.

    Args:
      attention: The attention weights.
      layer: The layer, from 0; None for all.
      head: The head, from 0; None for all.
      joined: See `as_shown`.
      special_tokens: See `as_shown`.
    """
    weights, words = as_shown(attention, joined, special_tokens)
    layers = _indexes(layer, attention.num_layers)
    heads = _indexes(head, attention.num_heads)
    with _fonts():
        if len(layers) == len(heads) == 1:
            figure = _draw_head(weights[layers[0], heads[0]], words)
        else:
            figure = _draw_overview(weights, words, layers, heads)
        title = f"Attention of {attention.model}: {_title(layer, head)}"
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
    """Returns colors from white to the color of the attended text.

    They depend on the square root of the weight, since most weights are a few
    percent, which would look white.

    Args:
      weights: Floats from 0 to 1, [W, W].
      segments: 0 or 1 for each of the W columns.

    Returns:
      Red, green and blue from 0 to 1, floats [W, W, 3].
    """
    strength = np.sqrt(np.clip(weights, 0, 1))[..., np.newaxis]
    return 1 - strength * (1 - ACCENTS[list(segments)])


def _indexes(index: int | None, count: int) -> list[int]:
    return list(range(count)) if index is None else [index]


def _title(layer: int | None, head: int | None) -> str:
    """Returns, for example, "layer 3, all heads"."""
    if layer is None and head is None:
        return "all heads"
    layers = "all layers" if layer is None else f"layer {layer}"
    return f"{layers}, {'all heads' if head is None else f'head {head}'}"


def _drawable(text: str) -> str:
    """Replaces halves of surrogate pairs, which matplotlib cannot draw."""
    return text.encode(errors="replace").decode()


def _draw_head(weights: np.ndarray, words: list[Word]) -> "Figure":
    """Draws one head: rows for attending words, columns for attended words."""
    count = len(words)
    cell = np.clip(HEAD_WIDTH / count, NARROWEST_CELL, WIDEST_CELL)
    size = max(3.0, cell * count)
    figure = _figure(size + 1.4, size + 1.7)
    axes = figure.add_subplot()
    _show(axes, weights, words)
    # This must precede the labels, or they would be on the other side.
    axes.tick_params(top=True, labeltop=True, bottom=False, labelbottom=False)
    axes.tick_params(length=0, pad=3)
    points = float(np.clip(cell * 36, 4.5, 10))
    style: Any = {"fontsize": points, "color": INK, "parse_math": False}
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
    """Writes weights of at least half a percent into the cells."""
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
    """Draws several heads: a row for each layer, a column for each head."""
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
    """Draws the cells, and lines where the second text begins."""
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
    """Lets matplotlib search several fonts for each character.

    Its own font has Latin, Greek, Cyrillic, Hebrew and Arabic. Characters in no
    font are drawn as boxes, without a warning for each.
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
    """Returns an empty figure, in inches, without pyplot's global state."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="compressed")
