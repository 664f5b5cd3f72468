"""Named entities: sentences, their records, files, labels and scores."""

import dataclasses
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from absl import logging

from bert_tf import files
from bert_tf.data import cache, processes
from bert_tf.data.schema import Schema, tagging_schema
from bert_tf.errors import InputError
from bert_tf.metrics import entities, entity_scores
from bert_tf.tasks.conll import Sentence
from bert_tf.tasks.encoding import TextEncoding
from bert_tf.tasks.tagging import TaggingTask

OUTSIDE = "O"

_SENTENCES_PER_PART = 1 << 12
_NUM_SAMPLES = 3


@dataclasses.dataclass(frozen=True)
class TaggingEncoding(TextEncoding):
    """How sentences become features.

    Attributes, beside those of `TextEncoding`:
      labels: The tags, in the order of their numbers.
    """

    labels: tuple[str, ...]

    @property
    def schema(self) -> Schema:
        """What the records hold."""
        return tagging_schema(self.max_seq_length)


class TaggingFeatures(NamedTuple):
    """What becomes of some sentences.

    Attributes:
      batch: For each feature of the schema an array [n, S].
      num_cut: Rows with a single word, too long for them: its last pieces are
        not there.
    """

    batch: dict[str, np.ndarray]
    num_cut: int


class _Words(NamedTuple):
    """The words of all sentences, W of them in P pieces.

    Attributes:
      pieces: int32 [P], word by word.
      counts: How many are of each word, int [W]; at least 1 and at most as
        many as a row takes.
      num_cut: Words that had more.
    """

    pieces: np.ndarray
    counts: np.ndarray
    num_cut: int


def labels_of(sentences: Iterable[Sentence]) -> tuple[str, ...]:
    """The labels that sentences need: "O", then B- and I- of each type.

    Both are there even if a type has been seen in entities of one word alone.

    Args:
      sentences: They have tags.
    """
    tags = set(itertools.chain.from_iterable(s.tags or () for s in sentences))
    types = {tag[1:] for tag in tags - {OUTSIDE}}
    return OUTSIDE, *sorted(mark + kind for mark in "BI" for kind in types)


def label_numbers(
    sentences: Iterable[Sentence], labels: Sequence[str]
) -> list[int]:
    """The label of each word, [W]; 0 for those without a tag.

    Raises:
      InputError: A tag is not among the labels.
    """
    numbers = {label: number for number, label in enumerate(labels)}
    found = []
    for sentence in sentences:
        tags = sentence.tags or itertools.repeat(labels[0], len(sentence.words))
        for word, tag in enumerate(tags):
            if tag not in numbers:
                raise InputError(
                    f"Expected a tag among {', '.join(labels)}. Received: "
                    f"{_original(sentence, word)} at {sentence.where(word)}; "
                    "correct it, or train with --labels that include it"
                )
            found.append(numbers[tag])
    return found


def _original(sentence: Sentence, word: int) -> str:
    """The tag of a word as its file has it, for messages."""
    tags = sentence.tags or ()
    original = (sentence.original_tags or tags)[word]
    suffix = f" ({tags[word]} in IOB2)" if original != tags[word] else ""
    return f"{original!r}{suffix}"


def write_tagging_features(
    path: str,
    sentences: Sequence[Sentence],
    encoding: TaggingEncoding,
    *,
    sources: Iterable[str] = (),
    reading: Mapping[str, Any] | None = None,
) -> bool:
    """Writes the records of sentences, unless they are there already.

    Args:
      path: The TFRecord file; see `cache.write_records`.
      sentences: What to write, in this order.
      encoding: How.
      sources: The files that the sentences came from.
      reading: What else decided on them; whatever JSON can hold.

    Returns:
      Whether anything was written: False if the file was good already.

    Raises:
      InputError: A tag is not among the labels; a file cannot be written.
    """
    key = cache.key(encoding, map(content, sentences), sources, reading)
    kept = cache.write_records(path, key, lambda: _parts(sentences, encoding))
    logging.info(
        "%s: %s sentences in %s rows of at most %d places; %s words were too "
        "long for a row, and lost pieces",
        path,
        f"{len(sentences):,}",
        f"{kept.num_records:,}",
        encoding.max_seq_length,
        f"{kept.num_cut:,}",
    )
    return kept.is_new


def count_rows(sentences: Sequence[Sentence], encoding: TaggingEncoding) -> int:
    """How many rows `make_tagging_features` makes of sentences."""
    counts = _encode_words(sentences, encoding).counts
    return len(_row_lengths(sentences, counts, _room(encoding)))


def content(sentence: Sentence) -> bytes:
    """What of a sentence shows in its records."""
    return repr((sentence.words, sentence.tags)).encode()


def make_tagging_features(
    sentences: Sequence[Sentence], encoding: TaggingEncoding
) -> TaggingFeatures:
    """Tokenizes, splits and pads sentences.

    Each row takes as many words as it has room for. A single word that has
    more pieces than that keeps the first. One of no piece at all, a control
    character for example, is `[UNK]`. Words without a tag have label 0.

    Raises:
      InputError: A tag is not among the labels; rows have no room for a word.
    """
    words = _encode_words(sentences, encoding)
    first_pieces = np.cumsum(words.counts) - words.counts  # [W]
    is_first = np.zeros_like(words.pieces)  # [P]
    is_first[first_pieces] = 1
    label_ids = np.zeros_like(words.pieces)  # [P]
    label_ids[first_pieces] = label_numbers(sentences, encoding.labels)
    lengths = _row_lengths(sentences, words.counts, _room(encoding))
    vocab = encoding.tokenizer.vocab
    places = np.arange(encoding.max_seq_length)
    # In [CLS] pieces [SEP], pieces fill the rows one after the other.
    ends = lengths[:, np.newaxis] + 1
    is_piece = (places > 0) & (places < ends)  # [n, S]
    batch = {
        feature.name: np.zeros(is_piece.shape, np.int32)
        for feature in encoding.schema
    }
    batch["input_ids"][is_piece] = words.pieces
    batch["input_ids"][:, 0] = vocab["[CLS]"]
    batch["input_ids"][places == ends] = vocab["[SEP]"]
    batch["input_mask"][places <= ends] = 1
    batch["label_ids"][is_piece] = label_ids
    batch["label_mask"][is_piece] = is_first
    return TaggingFeatures(batch, words.num_cut)


def word_tags(
    label_ids: np.ndarray,
    label_mask: np.ndarray,
    sentences: Sequence[Sentence],
    labels: Sequence[str],
) -> list[tuple[str, ...]]:
    """Labels of pieces to tags of words, as `make_tagging_features` has them.

    Args:
      label_ids: Numbers of labels, predicted ones for example, integers
        [n, L] for any L that holds all words.
      label_mask: The feature of that name, [n, L].
      sentences: What the rows were made of.
      labels: Their names.

    Returns:
      For each sentence a tag for each word.
    """
    numbers = label_ids[label_mask > 0].tolist()
    lengths = [len(sentence.words) for sentence in sentences]
    if len(numbers) != sum(lengths):
        raise ValueError(
            f"Expected labels of {sum(lengths)} words. Received: {len(numbers)}"
        )
    tags = (labels[number] for number in numbers)
    return [tuple(itertools.islice(tags, length)) for length in lengths]


# ---------------------------------------------------------------- the records


def _parts(
    sentences: Sequence[Sentence], encoding: TaggingEncoding
) -> Iterator[cache.Part]:
    """The pieces of the file, in order."""
    _log_samples(sentences[:_NUM_SAMPLES], encoding)
    pieces = [
        sentences[start : start + _SENTENCES_PER_PART]
        for start in range(0, len(sentences), _SENTENCES_PER_PART)
    ]
    for piece in processes.track(
        pieces, len, "Tokenizing", "sentences", len(sentences)
    ):
        features = make_tagging_features(piece, encoding)
        yield cache.make_part(encoding.schema, *features)


def _log_samples(
    sentences: Sequence[Sentence], encoding: TaggingEncoding
) -> None:
    """Shows rows as the original does, without the padding."""
    batch = make_tagging_features(sentences, encoding).batch
    names = np.array(encoding.labels)
    for row in range(min(len(batch["input_ids"]), _NUM_SAMPLES)):
        of_row = {name: values[row] for name, values in batch.items()}
        ids = of_row["input_ids"][of_row["input_mask"] > 0].tolist()
        labels = names[of_row["label_ids"][of_row["label_mask"] > 0]]
        tokens = encoding.tokenizer.convert_ids_to_tokens(ids)
        logging.info("*** Example ***")
        logging.info("tokens: %s", " ".join(tokens))
        logging.info("input_ids: %s", " ".join(map(str, ids)))
        logging.info("labels: %s", " ".join(labels))


# --------------------------------------------------------------- the features


def _room(encoding: TaggingEncoding) -> int:
    """Pieces of a row, between [CLS] and [SEP]."""
    room = encoding.max_seq_length - 2
    if room < 1:
        raise InputError(
            "Expected max_seq_length to hold [CLS], a piece and [SEP]. "
            f"Received: {encoding.max_seq_length}"
        )
    return room


def _encode_words(
    sentences: Iterable[Sentence], encoding: TaggingEncoding
) -> _Words:
    tokenizer, room = encoding.tokenizer, _room(encoding)
    unknown = [tokenizer.vocab[tokenizer.unk_token]]
    words = [
        tokenizer.encode(word) or unknown
        for sentence in sentences
        for word in sentence.words
    ]
    kept = [ids[:room] for ids in words]
    return _Words(
        np.fromiter(itertools.chain.from_iterable(kept), np.int32),
        np.fromiter(map(len, kept), int, len(kept)),
        sum(len(ids) > room for ids in words),
    )


def _row_lengths(
    sentences: Iterable[Sentence], counts: np.ndarray, room: int
) -> np.ndarray:
    """How many pieces each row takes, int [n].

    Args:
      sentences: Those of the words.
      counts: The pieces of each word, at most `room`, [W].
      room: The most that a row takes.
    """
    ends = np.cumsum(counts)
    lengths = []
    word, begin = 0, 0  # Of the row: its first word, and the pieces before it.
    for sentence in sentences:
        last = word + len(sentence.words)
        while word < last:
            fitting = int(np.searchsorted(ends, begin + room, side="right"))
            word = min(fitting, last)
            lengths.append(ends[word - 1] - begin)
            begin = ends[word - 1]
    return np.array(lengths, int)


# Named entities: which files, which labels, and how good the answers are.


# The names that `score` gives, whatever the types of entities are.
METRICS = tuple(
    f"eval_{name}" for name in ("f1", "precision", "recall", "accuracy", "loss")
)

# How the splits are called in folders; the official names last.
_STEMS = {
    "train": ("train",),
    "dev": ("dev", "valid", "devel"),
    "test": ("test",),
}
_EXTENSIONS = ("txt", "tsv", "conll")
_OFFICIAL = {"train": "eng.train", "dev": "eng.testa", "test": "eng.testb"}


def find_file(
    split: str, data_dir: str | None = None, name: str | None = None
) -> str:
    """Finds the CoNLL file of a split, compressed (.gz) or not.

    Args:
      split: "train", "dev" or "test".
      data_dir: The folder of all splits.
      name: The file, in the folder or a path of its own; None: it has one of
        the usual names.

    Raises:
      InputError: There is none.
    """
    if name:
        inside = os.path.join(data_dir or "", name)
        return inside if files.exists(inside) else name
    if not data_dir:
        raise InputError(
            f"expected --data_dir or --{split}_file. Received: neither"
        )
    names = [f"{s}.{e}" for s in _STEMS[split] for e in _EXTENSIONS]
    names.append(_OFFICIAL[split])
    for candidate in [*names, *(f"{name}.gz" for name in names)]:
        path = os.path.join(data_dir, candidate)
        if files.exists(path):
            return path
    raise InputError(
        f"expected one of {', '.join(names)} in --data_dir, or --{split}_file. "
        f"Received: {data_dir}, which has none of them"
    )


def choose_labels(
    given: Sequence[str] | None = None,
    known: Sequence[str] | None = None,
    train: Sequence[Sentence] | None = None,
) -> tuple[str, ...]:
    """The labels of a run, in the order of their numbers.

    They are those that are given, else those of the training set, else those
    of the model. The model's order is kept where it has the same ones.

    Args:
      given: Those that the user names.
      known: Those of the model that the run starts from.
      train: The sentences to train on; None where nothing is trained.

    Raises:
      InputError: They are nowhere to be found, or are no tags.
    """
    labels = given or (labels_of(train) if train is not None else known)
    if not labels:
        raise InputError(
            "expected --do_train, --labels, or a model that brings its labels. "
            "Received: none of them"
        )
    try:
        entities(labels)
    except ValueError as error:
        raise InputError(
            "expected labels that are tags of IOB2; name them with --labels, "
            f"in the order of the model. {error}"
        ) from None
    if len(set(labels)) < len(labels):
        raise InputError(
            f"expected different --labels. Received: {', '.join(labels)}"
        )
    is_known = known and sorted(known) == sorted(labels)
    return tuple(known if is_known else labels)


def predicted_tags(
    task: TaggingTask,
    predictions: Mapping[str, np.ndarray],
    sentences: Sequence[Sentence],
) -> list[tuple[str, ...]]:
    """The tags of whole sentences.

    Args:
      task: It has the labels.
      predictions: What the task keeps of the rows of the sentences, in order.
      sentences: They.
    """
    return word_tags(
        predictions["predicted_ids"],
        predictions["label_mask"],
        sentences,
        task.labels,
    )


def score(
    task: TaggingTask,
    predictions: Mapping[str, np.ndarray],
    sentences: Sequence[Sentence],
) -> dict[str, float]:
    """The metrics of sentences that have tags.

    Args:
      task: It has the labels.
      predictions: What the task keeps of the rows of the sentences, in order.
      sentences: They.

    Returns:
      What `metrics.entity_scores` gives, and `loss`; each name with "eval_".
    """
    gold = [sentence.tags for sentence in sentences]
    tags = predicted_tags(task, predictions, sentences)
    metrics = entity_scores(gold, tags)
    found = {f"eval_{name}": value for name, value in metrics.items()}
    return task.score(predictions) | found
