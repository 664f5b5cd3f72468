"""A text as pieces and words, and how much each attends to each.

Shapes: L layers, N heads, S pieces, W words. Attentions are those of
`BertModel(output_attentions=True)` for one sequence.
"""

import dataclasses
import re
import unicodedata
from collections.abc import Iterable, Iterator

import numpy as np

from bert_tf.errors import InputError
from bert_tf.text.wordpiece import CONTINUATION, FullTokenizer, Token

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
