"""Named entities: which files, which labels, and how good the answers are."""

import os
from collections.abc import Mapping, Sequence

import numpy as np

from bert_tf import entity_metrics, files
from bert_tf.data.conll import Sentence
from bert_tf.data.tagged_sentences import labels_of, word_tags
from bert_tf.errors import InputError
from bert_tf.tasks.tagging import TaggingTask

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
        entity_metrics.entities(labels)
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
      What `entity_metrics.score` gives, and `loss`; each name with "eval_".
    """
    gold = [sentence.tags for sentence in sentences]
    tags = predicted_tags(task, predictions, sentences)
    metrics = entity_metrics.score(gold, tags)
    found = {f"eval_{name}": value for name, value in metrics.items()}
    return task.score(predictions) | found
