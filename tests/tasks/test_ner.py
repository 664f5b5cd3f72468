import gzip

import numpy as np
import pytest

from bert_tf.errors import InputError
from bert_tf.tasks import ner
from bert_tf.tasks.conll import Sentence
from bert_tf.tasks.tagging import TaggingTask
from tests.tasks.small_training import CONFIG

LABELS = ("O", "B-A", "I-A", "B-B", "I-B")


def sentence(tags):
    tags = tuple(tags.split())
    return Sentence(("w",) * len(tags), tags, tuple(range(len(tags))), "x")


@pytest.fixture
def folder(tmp_path):
    for name in ("dev.txt", "eng.train", "mine.conll", "valid.txt"):
        (tmp_path / name).write_text("a O\n")
    (tmp_path / "eng.testb.gz").write_bytes(gzip.compress(b"a O\n"))
    return tmp_path


@pytest.mark.parametrize(
    ("split", "name", "expected"),
    [
        ("train", None, "eng.train"),
        ("dev", None, "dev.txt"),
        ("test", None, "eng.testb.gz"),
        ("test", "mine.conll", "mine.conll"),
    ],
)
def test_files_of_a_folder(folder, split, name, expected):
    found = ner.find_file(split, str(folder), name)
    assert found == str(folder / expected)


def test_a_file_may_lie_anywhere(folder):
    path = str(folder / "mine.conll")
    assert ner.find_file("dev", None, path) == path
    assert ner.find_file("dev", "elsewhere", path) == path
    assert ner.find_file("dev", str(folder), "none.txt") == "none.txt"


def test_files_that_are_not_there(folder):
    with pytest.raises(InputError, match=r"--data_dir or --dev_file"):
        ner.find_file("dev")
    (folder / "eng.train").unlink()
    expected = r"train.txt, .*eng.train in --data_dir, or --train_file"
    with pytest.raises(InputError, match=expected):
        ner.find_file("train", str(folder))


TRAIN = [sentence("O B-A"), sentence("B-B I-B")]


@pytest.mark.parametrize(
    ("given", "known", "train", "expected"),
    [
        (None, None, TRAIN, ("O", "B-A", "B-B", "I-A", "I-B")),
        (None, LABELS, TRAIN, LABELS),
        (None, ("no", "yes"), TRAIN, ("O", "B-A", "B-B", "I-A", "I-B")),
        (None, LABELS, None, LABELS),
        (["B-A", "O"], LABELS, TRAIN, ("B-A", "O")),
        (["B-A", "O"], ("O", "B-A"), None, ("O", "B-A")),
        (["B-A", "O"], ("LABEL_0", "LABEL_1"), None, ("B-A", "O")),
    ],
)
def test_where_labels_come_from(given, known, train, expected):
    assert ner.choose_labels(given, known, train) == expected


@pytest.mark.parametrize(
    ("given", "known", "message"),
    [
        (None, None, "--do_train, --labels, or a model"),
        (None, ("LABEL_0", "LABEL_1"), r"IOB2; .* Received: 'LABEL_0'"),
        (["O", "S-A"], None, r"IOB2; .* Received: 'S-A'"),
        (["O", "B-A", "O"], None, "different --labels. Received: O, B-A, O"),
    ],
)
def test_what_labels_cannot_be(given, known, message):
    with pytest.raises(InputError, match=message):
        ner.choose_labels(given, known)


def test_scores_are_of_whole_sentences():
    """An entity that two rows share is one."""
    sentences = [sentence("O B-A I-A I-A"), sentence("B-B O")]
    mask = np.zeros([3, 7], int)
    mask[0, [1, 2, 4]] = mask[1, 2] = mask[2, [1, 3]] = 1
    predicted = np.full(mask.shape, 3)
    predicted[mask > 0] = [0, 1, 2, 2, 1, 0]
    predictions = {
        "predicted_ids": predicted,
        "label_mask": mask,
        "label_ids": np.zeros_like(mask),
        "loss": np.array([1.5, 0.5, 1.0], np.float32),
    }
    task = TaggingTask(CONFIG, (), LABELS)
    assert ner.predicted_tags(task, predictions, sentences) == [
        ("O", "B-A", "I-A", "I-A"),
        ("B-A", "O"),
    ]
    metrics = ner.score(task, predictions, sentences)
    assert metrics == pytest.approx(
        {
            "eval_precision": 1 / 2,
            "eval_recall": 1 / 2,
            "eval_f1": 1 / 2,
            "eval_accuracy": 5 / 6,
            "eval_loss": 3 / 6,
            "eval_A_precision": 1 / 2,
            "eval_A_recall": 1.0,
            "eval_A_f1": 2 / 3,
            "eval_B_precision": 0.0,
            "eval_B_recall": 0.0,
            "eval_B_f1": 0.0,
        }
    )
    assert {*ner.METRICS} <= {*metrics}
