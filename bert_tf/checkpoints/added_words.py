"""New words in the vocabulary of a checkpoint: `--add_words`."""

import collections
import dataclasses
import re
from collections.abc import Mapping, Sequence

import numpy as np
from absl import logging

from bert_tf.checkpoints.checkpoint import Pretrained
from bert_tf.checkpoints.weights import Weights
from bert_tf.errors import in_file
from bert_tf.tokenization.normalization import Normalizer
from bert_tf.tokenization.vocabulary_file import read_tokens
from bert_tf.tokenization.wordpiece import FullTokenizer

# The tokenizer of transformers maps longer words to [UNK].
MOST_CHARACTERS = 100

# The tables that have a row for each token, and their Adam slots.
_TABLES = re.compile(
    r"(bert/embeddings/word_embeddings|cls/predictions/output_bias)"
    r"(/adam_[mv])?"
)


class GrownWeights:
    """The weights of a checkpoint with rows for more tokens: a `Weights`.

    A new row is the mean of the rows of the tokens that the word was split
    into, so its masked-LM logit is the mean of their logits. In Adam's slots it
    is zero. Other rows and weights are unchanged, bit for bit.

    Args:
      weights: The weights of the checkpoint.
      first: The row of the first new word. Existing rows from here on belong to
        no token; new words replace as many of them as needed.
      pieces: The old token ids of each new word.
    """

    def __init__(
        self, weights: Weights, first: int, pieces: Sequence[Sequence[int]]
    ):
        self.path = weights.path
        # Only Hugging Face's weights have it.
        self.explained = getattr(weights, "explained", {})
        self._weights = weights
        self._first = first
        self._pieces = pieces
        self.shapes: Mapping[str, Sequence[int]] = {
            name: self._shape(name, shape)
            for name, shape in weights.shapes.items()
        }

    def __contains__(self, name: str) -> bool:
        return name in self._weights

    def __getitem__(self, name: str) -> np.ndarray:
        table = self._weights[name]
        match = _TABLES.fullmatch(name)
        if not match:
            return table
        rows = np.zeros((len(self._pieces), *table.shape[1:]), table.dtype)
        if not match[2]:
            for row, ids in enumerate(self._pieces):
                rows[row] = table[[*ids]].astype(np.float64).mean(axis=0)
        last = self._first + len(rows)
        return np.concatenate([table[: self._first], rows, table[last:]])

    def _shape(self, name: str, shape: Sequence[int]) -> Sequence[int]:
        if not _TABLES.fullmatch(name):
            return shape
        return (max(shape[0], self._first + len(self._pieces)), *shape[1:])


def add_words(source: Pretrained, path: str) -> Pretrained:
    """Returns a checkpoint whose vocabulary ends with the words of a file.

    Words are appended, so that all other tokens keep their ids, in every
    format. A word is added as the tokenizer normalizes it, for example in lower
    case. Duplicates and words in the vocabulary are skipped and counted.

    Args:
      source: The checkpoint.
      path: A UTF-8 text file with one word per line. Blank lines are skipped.

    Raises:
      InputError: If the file cannot be read, has no new word, or has a word
        that can never be one token; or the configuration, the vocabulary or its
        casing is unknown.
    """
    config, vocab = source.config, source.vocab
    for name, value in (
        ("bert_config_file", config),
        ("vocab_file", vocab),
        ("do_lower_case", source.do_lower_case),
    ):
        if value is None:
            raise in_file(
                source.path, f"`add_words` needs `{name}`, which is unknown."
            )
    assert config is not None
    assert vocab is not None
    lower = bool(source.do_lower_case)
    tokenizer = FullTokenizer(vocab, lower, source.strip_accents)
    words = _read_words(path, tokenizer)
    pieces = [tokenizer.encode(word) for word in words]
    quoted = ", ".join(
        f"{word} ({' '.join(tokenizer.convert_ids_to_tokens(ids))})"
        for word, ids in zip(words[:3], pieces, strict=False)
    )
    logging.info(
        "%s: %d words are added, with ids from %d: %s",
        path,
        len(words),
        len(vocab),
        quoted + ", ..." * (len(words) > 3),
    )
    size = max(config.vocab_size, len(vocab) + len(words))
    return dataclasses.replace(
        source,
        # It no longer describes the files at this path.
        path=f"{source.path} with {len(words)} added words",
        weights=GrownWeights(source.weights, len(vocab), pieces),
        config=dataclasses.replace(config, vocab_size=size),
        vocab=(*vocab, *words),
    )


def _read_words(path: str, tokenizer: FullTokenizer) -> list[str]:
    """Returns the new words, normalized; warns of those that are skipped."""
    normalize = Normalizer(tokenizer.do_lower_case, tokenizer.strip_accents)
    words: dict[str, None] = {}
    skipped = collections.defaultdict(list)
    for line, text in enumerate(read_tokens(path), start=1):
        if not text:
            continue
        parts = normalize(text).split()
        if len(parts) != 1:
            result = " ".join(parts) or "nothing"
            raise in_file(
                path,
                f"{text!r} cannot be one token: the tokenizer changes it to "
                f"{result!r} before it looks for tokens. Remove or change the "
                "word.",
                line,
            )
        if len(parts[0]) > MOST_CHARACTERS:
            raise in_file(
                path,
                f"a word must have at most {MOST_CHARACTERS} characters; got "
                f"{len(parts[0])}.",
                line,
            )
        [word] = parts
        if word in words:
            skipped["duplicates"].append(f"{path}:{line}: {text!r}")
        elif word in tokenizer.vocab:
            skipped["known words"].append(f"{path}:{line}: {text!r}")
        else:
            words[word] = None
    for what, places in skipped.items():
        logging.warning(
            "Skipped %d %s; the first: %s", len(places), what, places[0]
        )
    if not words:
        raise in_file(path, "there is no new word.")
    return list(words)
