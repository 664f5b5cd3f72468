"""WordPiece tokenization in Python, with character offsets on request."""

import codecs
import itertools
import os
import re
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from absl import logging

from bert_tf import files
from bert_tf.errors import InputError
from bert_tf.tokenization import normalization

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
MAX_CHARACTERS_PER_WORD = 200
CONTINUATION = "##"

# Entries of the two caches below; together they stay under some 100 MB.
_CACHE_ENTRIES = 1 << 17
_CACHED_LENGTH = 40


class Token(NamedTuple):
    """A piece and where it came from.

    Attributes:
      text: The piece as the vocabulary spells it.
      id: Its id.
      start: Index of its first character in the original text.
      end: Index behind its last character, dropped accents included.
    """

    text: str
    id: int
    start: int
    end: int


class _Cache(dict):
    """Remembers what a function gave for short strings; bounded."""

    def __init__(self, function: Callable[[str], tuple[int, ...]]):
        self._function = function

    def __missing__(self, key: str) -> tuple[int, ...]:
        value = self._function(key)
        if len(key) <= _CACHED_LENGTH:
            if len(self) >= _CACHE_ENTRIES:
                self.clear()
            self[key] = value
        return value


class FullTokenizer:
    """Basic tokenization, then WordPiece: the original's tokenizer.

    Args:
      vocab_file: A file with one token a line, or the tokens in the order of
        their ids; see `load_vocab`.
      do_lower_case: Whether the vocabulary is an uncased one.
      strip_accents: Whether to drop accents; None does as `do_lower_case`.
      unk_token: Stands for a word that no pieces spell, and for a word of
        more than 200 characters.

    Raises:
      InputError: If the vocabulary is unusable or lacks `unk_token`.
    """

    def __init__(
        self,
        vocab_file: str | os.PathLike[str] | Sequence[str],
        do_lower_case: bool = True,
        strip_accents: bool | None = None,
        unk_token: str = "[UNK]",
    ):
        self._arguments = (vocab_file, do_lower_case, strip_accents, unk_token)
        self.vocab = load_vocab(vocab_file)
        require_special_tokens(self.vocab, [unk_token], source_of(vocab_file))
        self.inv_vocab = list(self.vocab)
        self.unk_token = unk_token
        self._normalizer = normalization.Normalizer(
            do_lower_case, strip_accents
        )
        self._longest_token = max(map(len, self.inv_vocab))
        self._ids_of_word = _Cache(
            lambda word: tuple(self.convert_tokens_to_ids(self._split(word)))
        )
        self._ids_of_chunk = _Cache(
            lambda chunk: tuple(self._ids_of_words(self._normalizer(chunk)))
        )

    def __reduce__(self):
        return type(self), self._arguments

    def tokenize(self, text: str) -> list[str]:
        """Returns the pieces of a text."""
        words = self._normalizer(text).split()
        return list(itertools.chain.from_iterable(map(self._split, words)))

    def encode(self, text: str) -> list[int]:
        """Returns the ids of the pieces; many times as fast as `tokenize`."""
        # In printable text the only space is U+0020, and nothing but U+FFFD
        # is deleted: it falls at once into chunks for the later steps.
        if not text.isprintable():
            text = normalization.clean(text)
        chunks = text.split()
        return _flatten(map(self._ids_of_chunk.__getitem__, chunks))

    def tokenize_with_offsets(self, text: str) -> list[Token]:
        """Returns the pieces and the characters of `text` that made them.

        `text[token.start : token.end]` is "é" for the piece "e" of an uncased
        vocabulary, whether that is one code point or two.
        """
        normalized, starts, ends = self._normalizer.align(text)
        tokens = []
        for word in re.finditer("[^ ]+", normalized):
            begin = word.start()
            for piece, first, last in self._spans(word.group()):
                where = slice(begin + first, begin + last)
                # Marks may have changed places: hence min and max.
                start, end = min(starts[where]), max(ends[where])
                tokens.append(Token(piece, self.vocab[piece], start, end))
        return tokens

    def convert_tokens_to_ids(self, tokens: Iterable[str]) -> list[int]:
        """Returns the ids; KeyError for what is not in the vocabulary."""
        return [self.vocab[token] for token in tokens]

    def convert_ids_to_tokens(self, ids: Iterable[int]) -> list[str]:
        """Returns the tokens; IndexError for an id beyond the vocabulary."""
        return [self.inv_vocab[index] for index in ids]

    def _ids_of_words(self, normalized: str) -> list[int]:
        return _flatten(map(self._ids_of_word.__getitem__, normalized.split()))

    def _split(self, word: str) -> list[str]:
        return [piece for piece, _, _ in self._spans(word)]

    def _spans(self, word: str) -> list[tuple[str, int, int]]:
        """Splits a word into the longest pieces, from left to right.

        Returns:
          (piece, start, end) in the word's characters; one unknown token for
          a word that cannot be spelt to its end.
        """
        unknown = [(self.unk_token, 0, len(word))]
        if len(word) > MAX_CHARACTERS_PER_WORD:
            return unknown
        spans, start = [], 0
        while start < len(word):
            piece, end = self._longest_piece(word, start)
            if not piece:
                return unknown
            spans.append((piece, start, end))
            start = end
        return spans

    def _longest_piece(self, word: str, start: int) -> tuple[str, int]:
        """Returns the longest piece at `start` and its end; "" for none."""
        prefix = CONTINUATION if start else ""
        last = min(len(word), start + self._longest_token)
        for end in range(last, start, -1):
            piece = prefix + word[start:end]
            if piece in self.vocab:
                return piece, end
        return "", start


def load_vocab(
    vocabulary: str | os.PathLike[str] | Sequence[str],
    where: str | None = None,
) -> dict[str, int]:
    """Reads a vocabulary: one token a line, whose id is the line's number.

    A blank line is a token that never occurs; see `read_tokens`.

    Args:
      vocabulary: A path, local or one that TensorFlow reads ("gs://..."); or
        the tokens themselves, in the order of their ids.
      where: What messages call the origin of the tokens; a path by default.

    Returns:
      The tokens, in the order of their ids.

    Raises:
      InputError: If the file is missing, is not UTF-8, holds no token or one
        token twice.
    """
    if isinstance(vocabulary, (str, os.PathLike)):
        vocabulary, where = read_tokens(str(vocabulary)), str(vocabulary)
    where = where or source_of(vocabulary)
    vocab: dict[str, int] = {}
    for index, token in enumerate(vocabulary):
        if token in vocab:
            raise InputError(
                "Expected every token of the vocabulary once. Received: "
                f"{token!r} on lines {vocab[token] + 1} and {index + 1} of "
                f"{where}; change one of them to an unused name, so that the "
                "ids behind it stay"
            )
        vocab[token] = index
    if not vocab:
        raise InputError(
            f"Expected a token on every line of {where}. Received: nothing"
        )
    return vocab


def read_tokens(path: str) -> list[str]:
    """Reads the lines of a vocabulary, whatever they are good for.

    A line ends at "\\n" and nowhere else. White space around a token is no
    part of it, nor is a byte order mark before the first. A blank line is one
    (Google's Chinese vocabulary has one), but for those at the end.

    Raises:
      InputError: If the file cannot be read or is not UTF-8.
    """
    with files.open_read(path) as file:
        content = file.read().removeprefix(codecs.BOM_UTF8)
    lines = content.split(b"\n")
    tokens = [_decode(x, n, path) for n, x in enumerate(lines, start=1)]
    while tokens and not tokens[-1]:
        tokens.pop()
    return tokens


def source_of(vocabulary: str | os.PathLike[str] | Sequence[str]) -> str:
    """What a message calls the origin of a vocabulary."""
    if isinstance(vocabulary, (str, os.PathLike)):
        return str(vocabulary)
    return "a list of tokens"


def require_special_tokens(
    vocab: dict[str, int],
    names: Iterable[str] = SPECIAL_TOKENS,
    path: str | os.PathLike[str] = "the vocabulary",
) -> None:
    """Raises InputError if the vocabulary lacks one of the tokens `names`."""
    missing = [name for name in names if name not in vocab]
    if missing:
        raise InputError(
            f"Expected {' '.join(missing)} in the vocabulary. Received: "
            f"{len(vocab)} tokens without, from {path}; is it a vocab.txt of "
            "BERT?"
        )


def require_fit(
    vocab: dict[str, int], vocab_size: int, path: str | os.PathLike[str]
) -> None:
    """Raises InputError if a vocabulary cannot be that of a model.

    Args:
      vocab: What `load_vocab` gave.
      vocab_size: How many words the model knows.
      path: Where the vocabulary came from, for the message.
    """
    require_special_tokens(vocab, path=path)
    if len(vocab) > vocab_size:
        raise InputError(
            f"Expected at most {vocab_size} tokens in {path}, the model's "
            f"vocab_size. Received: {len(vocab)}"
        )
    warn_if_short(vocab, vocab_size, path)


def warn_if_short(
    vocab: dict[str, int], vocab_size: int, path: str | os.PathLike[str]
) -> None:
    """Logs that a model knows more words than its vocabulary has."""
    if len(vocab) < vocab_size:
        logging.warning(
            "%s has %d tokens, and the model's vocab_size is %d; if the file "
            "was cut short, copy it again",
            path,
            len(vocab),
            vocab_size,
        )


def continuation_mask(inv_vocab: Sequence[str]) -> np.ndarray:
    """Tells which ids continue a word: bool, [vocabulary size]."""
    return np.array([t.startswith(CONTINUATION) for t in inv_vocab], bool)


def replaceable_ids(inv_vocab: Sequence[str]) -> np.ndarray:
    """Tells which ids may stand in for a masked word: bool, [vocabulary size].

    All but the special and the unused ones ("[...]") and blank lines.
    """
    return np.array(
        [t != "" and not re.fullmatch(r"\[.+\]", t) for t in inv_vocab], bool
    )


def _flatten(ids: Iterable[tuple[int, ...]]) -> list[int]:
    return list(itertools.chain.from_iterable(ids))


def _decode(line: bytes, number: int, path: str) -> str:
    try:
        return line.decode("utf-8").strip()
    except UnicodeDecodeError as error:
        raise InputError(
            f"Expected UTF-8. Received: byte 0x{line[error.start]:02x} at "
            f"{path}:{number}; convert the file to UTF-8"
        ) from None
