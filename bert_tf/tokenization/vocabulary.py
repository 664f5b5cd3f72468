"""Learning a WordPiece vocabulary from text.

Hugging Face's trainer does the merging: starting from single characters it
joins the most frequent pair of pieces, again and again. It is given the words
of our own normalization, so that vocabulary and tokenizer agree, and every
single-character piece in a fixed order: left alone it would number them in the
order of a hash table, and break ties between pairs differently in every run.
"""

import collections
from collections.abc import Iterable, Iterator, Mapping, Sequence

import tokenizers
from absl import logging
from tokenizers import models, pre_tokenizers, trainers

from bert_tf.errors import InputError
from bert_tf.tokenization import normalization
from bert_tf.tokenization.wordpiece import CONTINUATION, SPECIAL_TOKENS

# Longer words are links and noise. In UTF-8 they, and so all pieces, have no
# more than the 256 bytes that the tokenizer in the graph can hold.
_MAX_CHARACTERS = 63
_MAX_PENDING_CHUNKS = 1 << 19
_WORDS_PER_TEXT = 1_000


def count_words(
    texts: Iterable[str], normalizer: normalization.Normalizer
) -> collections.Counter[str]:
    """Counts the words of basic tokenization.

    Args:
      texts: Lines or larger texts, each read once. No word goes on from one
        to the next.
      normalizer: Says what the words are.

    Returns:
      The count of every word of up to 63 characters.
    """
    words: collections.Counter[str] = collections.Counter()
    # Most of what stands between two spaces has been there before; it is
    # normalised only once, with its count.
    chunks: collections.Counter[str] = collections.Counter()
    for text in texts:
        chunks.update(normalization.clean(text).split())
        if len(chunks) > _MAX_PENDING_CHUNKS:
            _move(chunks, words, normalizer)
    _move(chunks, words, normalizer)
    return words


def learn_vocabulary(
    words: Mapping[str, int],
    vocab_size: int,
    *,
    num_unused_tokens: int = 0,
    min_frequency: int = 2,
    limit_alphabet: int | None = None,
) -> list[str]:
    """Learns a vocabulary; the same words and settings give the same one.

    The alphabet is the most frequent characters, as many as `limit_alphabet`
    and the vocabulary allow. A word with any other character will be [UNK],
    whatever else is learnt, and so teaches nothing.

    Args:
      words: Normalised words and their counts; their order is of no account.
      vocab_size: Tokens to give, no more and no fewer.
      num_unused_tokens: How many [unusedN] to put behind the special tokens.
      min_frequency: How often a character or a pair must occur to be taken.
      limit_alphabet: The most characters to take.

    Returns:
      [PAD], [UNK], [CLS], [SEP], [MASK], [unused0] ..., single characters,
      then pieces in the order in which they were learnt.

    Raises:
      InputError: If there are no words, or they do not give so many tokens.
    """
    if not words:
        raise InputError("Expected words to learn from. Received: none")
    tokens = [*SPECIAL_TOKENS]
    tokens += [f"[unused{i}]" for i in range(num_unused_tokens)]
    room = vocab_size - len(tokens)
    if room <= 0:
        raise InputError(
            f"Expected a vocab_size of more than the {len(tokens)} special and "
            f"unused tokens. Received: {vocab_size}"
        )
    frequent = _frequent_characters(words, min_frequency)
    alphabet = _fitting(frequent[:limit_alphabet], words, room)
    known = {w: n for w, n in words.items() if alphabet.issuperset(w)}
    _log_coverage(len(alphabet), len(frequent), known, words)
    tokens += _learn_pieces(known, room, min_frequency)
    if len(tokens) < vocab_size:
        raise InputError(
            f"Expected a corpus that gives {vocab_size} tokens. Received: "
            f"{sum(words.values())} words, which give {len(tokens)} that occur "
            f"{min_frequency} times; ask for at most {len(tokens)}, lower "
            "min_frequency or bring more text"
        )
    return tokens


def _move(
    chunks: collections.Counter[str],
    words: collections.Counter[str],
    normalizer: normalization.Normalizer,
) -> None:
    """Splits the chunks into words, adds their counts and forgets them."""
    for chunk, count in chunks.items():
        for word in normalizer(chunk).split():
            if len(word) <= _MAX_CHARACTERS:
                words[word] += count
    chunks.clear()


def _frequent_characters(
    words: Mapping[str, int], min_frequency: int
) -> list[str]:
    """Returns the characters that occur often enough, by frequency."""
    counts: collections.Counter[str] = collections.Counter()
    for word, count in words.items():
        for character in word:
            counts[character] += count
    characters = (c for c, count in counts.items() if count >= min_frequency)
    return sorted(characters, key=lambda c: (-counts[c], c))


def _fitting(
    characters: Sequence[str], words: Iterable[str], room: int
) -> set[str]:
    """Returns as many characters, from the first on, as `room` allows.

    A character that stands both at the start and inside of words needs two
    pieces; an ideograph or a punctuation mark, always alone, needs one.
    """
    starts, inner = _positions(words)
    fitting = set()
    for character in characters:
        room -= (character in starts) + (character in inner)
        if room < 0:
            break
        fitting.add(character)
    return fitting


def _positions(words: Iterable[str]) -> tuple[set[str], set[str]]:
    """Returns the characters that words start with and those inside."""
    starts: set[str] = set()
    inner: set[str] = set()
    for word in words:
        starts.add(word[0])
        inner.update(word[1:])
    return starts, inner


def _learn_pieces(
    words: Mapping[str, int], size: int, min_frequency: int
) -> list[str]:
    """Runs the trainer; returns up to `size` pieces."""
    starts, inner = _positions(words)
    # The trainer drops a character whose word-initial piece it lacks. Those
    # that start no word it gets in addition, and we leave them out again.
    idle = inner - starts
    letters = sorted(starts | inner)
    letters += [CONTINUATION + c for c in sorted(inner)]
    trainer = trainers.WordPieceTrainer(
        vocab_size=size + len(idle),
        min_frequency=min_frequency,
        special_tokens=letters,
        continuing_subword_prefix=CONTINUATION,
        show_progress=False,
    )
    tokenizer = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.train_from_iterator(_repeated(words), trainer)
    vocab = tokenizer.get_vocab()
    return [
        token
        for token in sorted(vocab, key=vocab.__getitem__)
        if token not in idle
    ]


def _repeated(words: Mapping[str, int]) -> Iterator[str]:
    """Yields texts that hold each word as often as its count says.

    The trainer takes no counts.
    """
    for word, count in words.items():
        for start in range(0, count, _WORDS_PER_TEXT):
            yield " ".join([word] * min(_WORDS_PER_TEXT, count - start))


def _log_coverage(
    num_taken: int,
    num_frequent: int,
    known: Mapping[str, int],
    words: Mapping[str, int],
) -> None:
    total = sum(words.values())
    logging.info(
        "Alphabet: %d of %d characters; %.3f %% of %d words are spelt with it",
        num_taken,
        num_frequent,
        100 * sum(known.values()) / max(total, 1),
        total,
    )
