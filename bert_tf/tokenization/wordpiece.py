"""WordPiece tokenization in Python."""

import functools
import itertools
import os
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Self

import numpy as np

from bert_tf.errors import (
    InputError,
    require_booleans,
    require_choice,
    wrong_value,
)
from bert_tf.tokenization import normalization
from bert_tf.tokenization.vocabulary_file import (
    CONTINUATION,
    load_vocab,
    require_special_tokens,
    source_of,
)

MAX_CHARACTERS_PER_WORD = 200

# Each of a tokenizer's two caches has at most this many entries, for strings of
# at most this length. This limits their memory to about 100 MB.
_CACHE_ENTRIES = 1 << 17
_CACHED_LENGTH = 40


class UnknownTokenError(InputError, KeyError):
    """An error for a token that is not in the vocabulary.

    A KeyError too, as in the original.
    """

    __str__ = InputError.__str__


class UnknownIdError(InputError, IndexError):
    """An error for an id that is not in the vocabulary.

    An IndexError too, as for any list.
    """


class Token(NamedTuple):
    """A token and its position in the text."""

    text: str  # As in the vocabulary.
    id: int
    start: int  # The index of its first character in the original text.
    end: int  # The index after its last character and stripped accents.


class _Cache(dict):
    """A cache of a function of short strings, with bounded size."""

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
    """The original's tokenizer: basic tokenization, then WordPiece.

    Args:
      vocab_file: A file with one token per line, or the tokens in the order of
        their ids; see `load_vocab`.
      do_lower_case: Whether the vocabulary is uncased.
      strip_accents: Whether to strip accents. By default the same as
        `do_lower_case`.
      unk_token: The token for words that cannot be split into tokens of the
        vocabulary, and for words of more than 200 characters.

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
        require_booleans(do_lower_case=do_lower_case)
        require_choice("strip_accents", strip_accents, (True, False, None))
        self.vocab = load_vocab(vocab_file)
        require_special_tokens(self.vocab, [unk_token], source_of(vocab_file))
        self.inv_vocab = list(self.vocab)
        self.unk_token = unk_token
        self.do_lower_case = do_lower_case
        self.strip_accents = strip_accents
        self._normalizer = normalization.Normalizer(
            do_lower_case, strip_accents
        )
        self._longest_token = max(map(len, self.inv_vocab))
        # A chunk is text between spaces: a word, often with punctuation.
        self._ids_of_word = _Cache(
            lambda word: tuple(self.vocab[t] for t, _, _ in self._split(word))
        )
        self._ids_of_chunk = _Cache(self._encode_chunk)

    @classmethod
    def from_pretrained(cls, path: str | os.PathLike[str]) -> Self:
        """Returns the tokenizer of a checkpoint of any format.

        Args:
          path: See `load_checkpoint`.

        Raises:
          InputError: If the checkpoint cannot be read or has no vocabulary.
        """
        # Imports Keras, which the tokenizer itself does not need.
        from bert_tf.checkpoints import pretrained

        arguments = pretrained.tokenizer_arguments(path)
        return cls(arguments.pop("vocabulary"), **arguments)

    def with_words(self, words: Iterable[str]) -> Self:
        """Returns a tokenizer whose vocabulary ends with more words.

        All other tokens keep their ids. Words are added as the tokenizer
        normalizes them, for example in lower case. Words that the vocabulary
        has are skipped.

        Args:
          words: The words.

        Raises:
          InputError: If a word can never be one token, such as "covid-19",
            which the tokenizer always splits.
        """
        tokens = dict(self.vocab)
        for word in words:
            _require_text(word)
            parts = self._normalizer(word).split()
            if len(parts) != 1 or len(parts[0]) > MAX_CHARACTERS_PER_WORD:
                raise wrong_value(
                    "A word",
                    "one word for the tokenizer, of at most "
                    f"{MAX_CHARACTERS_PER_WORD} characters",
                    word,
                    f"It becomes {' '.join(parts)!r}.",
                )
            tokens.setdefault(parts[0], len(tokens))
        return type(self)([*tokens], *self._arguments[1:])

    @functools.cached_property
    def vocabulary(self) -> tuple[str, ...]:
        """The tokens in the order of their ids."""
        return tuple(self.inv_vocab)

    def __reduce__(self):
        return type(self), self._arguments

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.description}>"

    @property
    def description(self) -> str:
        """The size of the vocabulary, and how texts are normalized."""
        text = f"{len(self.vocab)} tokens, do_lower_case={self.do_lower_case}"
        if self.strip_accents is not None:
            text += f", strip_accents={self.strip_accents}"
        return text

    def tokenize(self, text: str) -> list[str]:
        """Returns the tokens of a text."""
        _require_text(text)
        words = self._normalizer(text).split()
        return [token for word in words for token, _, _ in self._split(word)]

    def encode(self, text: str) -> list[int]:
        """Returns the token ids of a text, much faster than `tokenize`."""
        # From printable text, `clean` would only delete U+FFFD, as the
        # normalizer of a chunk does too.
        try:
            is_printable = text.isprintable()
        except AttributeError:
            _require_text(text)
            raise
        if not is_printable:
            text = normalization.clean(text)
        chunks = text.split()
        ids = map(self._ids_of_chunk.__getitem__, chunks)
        return list(itertools.chain.from_iterable(ids))

    def tokenize_with_offsets(self, text: str) -> list[Token]:
        """Returns the tokens with their positions in `text`.

        For the token "e" of an uncased vocabulary, `text[start:end]` may be
        "é", whether that is one code point or two.
        """
        _require_text(text)
        normalized, starts, ends = self._normalizer.align(text)
        tokens = []
        for word in re.finditer("[^ ]+", normalized):
            begin = word.start()
            for token, first, last in self._split(word.group()):
                source = slice(begin + first, begin + last)
                # NFD may have reordered marks, hence min and max.
                start, end = min(starts[source]), max(ends[source])
                tokens.append(Token(token, self.vocab[token], start, end))
        return tokens

    def convert_tokens_to_ids(self, tokens: Iterable[str]) -> list[int]:
        """Returns the ids of tokens, which are not split further.

        Raises:
          InputError: If a token is not in the vocabulary or not a string.
        """
        try:
            return [self.vocab[token] for token in tokens]
        except KeyError as error:
            raise UnknownTokenError(
                f"{error.args[0]!r} is not a token of the vocabulary. encode "
                f"converts texts, with {self.unk_token} for unknown words."
            ) from None
        except TypeError:
            raise wrong_value("Tokens", "a list of strings", tokens) from None

    def convert_ids_to_tokens(self, ids: Iterable[int]) -> list[str]:
        """Returns the tokens of ids.

        Raises:
          InputError: If an id is negative or too large, or not an integer.
        """
        most = len(self.inv_vocab) - 1
        try:
            indexes = list(ids)
            wrong = [index for index in indexes if not 0 <= index <= most]
            if not wrong:
                return list(map(self.inv_vocab.__getitem__, indexes))
        except (TypeError, ValueError):
            raise wrong_value("Ids", "a list of integers", ids) from None
        raise UnknownIdError(
            f"An id must be from 0 to {most}, as in the vocabulary; got "
            f"{wrong[0]}."
        )

    def _encode_chunk(self, chunk: str) -> tuple[int, ...]:
        ids: list[int] = []
        for word in self._normalizer(chunk).split():
            if word in self.vocab and len(word) <= MAX_CHARACTERS_PER_WORD:
                ids.append(self.vocab[word])
            else:
                ids += self._ids_of_word[word]
        return tuple(ids)

    def _split(self, word: str) -> list[tuple[str, int, int]]:
        """Takes the longest token of the vocabulary from the left, repeatedly.

        For example, with the tokens un, ##a, ##aff and ##able, "unaffable"
        becomes un, ##aff (longer than ##a), ##able. "unaffected" becomes
        [UNK], because no token matches "ected". Returns (token, start, end) in
        characters of the word.
        """
        unknown = [(self.unk_token, 0, len(word))]
        if len(word) > MAX_CHARACTERS_PER_WORD:
            return unknown
        spans, start = [], 0
        while start < len(word):
            prefix = CONTINUATION if start else ""
            longest = min(len(word), start + self._longest_token)
            for end in range(longest, start, -1):
                token = prefix + word[start:end]
                if token in self.vocab:
                    break
            else:
                return unknown
            spans.append((token, start, end))
            start = end
        return spans


def _require_text(text: Any) -> None:
    if not isinstance(text, str):
        raise wrong_value("A text", "a string", text)


def continuation_mask(inv_vocab: Sequence[str]) -> np.ndarray:
    """Returns which ids continue a word: bool [vocabulary size]."""
    return np.array([t.startswith(CONTINUATION) for t in inv_vocab], bool)


def replaceable_ids(inv_vocab: Sequence[str]) -> np.ndarray:
    """Returns which ids can replace a masked word: bool [vocabulary size].

    All except special and unused tokens ("[...]") and blank lines.
    """
    return np.array(
        [t != "" and not re.fullmatch(r"\[.+\]", t) for t in inv_vocab], bool
    )
