"""Checkpoints that do not fit: scripts and classes report the same errors."""

import dataclasses

import fine_tuning_runs
import keras
import numpy as np
import pytest
import sentence_files

import bert_tf
from bert_tf.checkpoints import tf1 as checkpoints
from bert_tf.checkpoints.checkpoint import Pretrained, write_metadata
from bert_tf.checkpoints.pretrained import kept_weights, open_pretrained
from bert_tf.config import BertConfig
from bert_tf.errors import InputError
from bert_tf.jobs.settings import StartOptions
from bert_tf.jobs.start import find_start, find_teacher
from bert_tf.modeling.encoder import BertModel
from bert_tf.modeling.heads import (
    BertClassifier,
    BertTokenClassifier,
)
from bert_tf.modeling.variables import checkpoint_variables

pytestmark = pytest.mark.usefixtures("eagerly")
VOCAB = tuple(sentence_files.VOCAB)
CONFIG = BertConfig.from_dict(fine_tuning_runs.CONFIG)
LABELS = ("bad", "good")
FACTS = {"vocab": VOCAB, "do_lower_case": True, "labels": LABELS}
SIGMOID = "torch.nn.modules.activation.Sigmoid"


def classifier(num_labels=2, **options):
    return BertClassifier(CONFIG, num_labels, **options)


@pytest.fixture
def saved(tmp_path):
    """Writes a checkpoint with random weights and some facts."""

    def make(model=None, head="classifier", lacks=" ", **facts):
        keras.utils.set_random_seed(3)
        model = model() if model else classifier()
        model.build()
        variables = checkpoint_variables(model).items()
        tensors = {n: np.array(v) for n, v in variables if lacks not in n}
        folder = tmp_path / "other"
        prefix = str(folder / "bert_model.ckpt")
        folder.mkdir()
        checkpoints.write(prefix, tensors)
        facts = {"config": CONFIG, "head": head, **FACTS, **facts}
        write_metadata(str(folder), Pretrained(prefix, {}, **facts))
        return str(folder)

    return make


@pytest.fixture
def student():
    tokenizer = bert_tf.FullTokenizer(VOCAB)
    options = {"labels": LABELS, "max_seq_length": 23}
    return bert_tf.TextClassifier(classifier(), tokenizer, **options)


def load(path, labels=LABELS, **options):
    options["max_seq_length"] = 9
    return bert_tf.TextClassifier.from_pretrained(
        path, labels=labels, **options
    )


def refusal(door, *arguments, **options):
    """Returns the error of a call that must fail."""
    with pytest.raises(InputError) as caught:
        door(*arguments, **options)
    return str(caught.value).rstrip(".")


def warnings_of(caplog, door, *arguments, **options):
    """Returns the warnings of a call, except those about filled weights."""
    caplog.clear()
    door(*arguments, **options)
    found = [x.getMessage() for x in caplog.records if x.levelname == "WARNING"]
    return [text for text in found if "variables filled" not in text]


def token():
    return BertTokenClassifier(CONFIG, 2)


def three():
    return classifier(3)


PROBLEM = "its problem type is regression, not single_label_classification"
HEADS = {
    "another order": ({"labels": LABELS[::-1]}, ""),
    "no labels": ({"labels": None}, ""),
    "numbers": ({"labels": ("LABEL_1", "LABEL_0")}, ""),
    "shared names": ({"labels": ("x", "x")}, ""),
    "unknown head": ({"head": None}, ""),
    "tags": (
        {"model": token, "head": "token"},
        "its head is token, not classifier",
    ),
    "outputs": (
        {"model": three, "labels": None},
        "its head has 3 outputs, not 2",
    ),
    "labels": ({"labels": ("a", "b")}, "its labels are a and b"),
    "a number": ({"problem_type": "regression"}, PROBLEM),
}


@pytest.mark.parametrize(("facts", "words"), HEADS.values(), ids=[*HEADS])
def test_the_head_to_start_from(saved, student, caplog, facts, words):
    path = saved(**facts)
    task = student.make_task()

    def start():
        return kept_weights(open_pretrained(path), task)

    loaded = []
    found = warnings_of(caplog, start)
    assert found == warnings_of(caplog, lambda: loaded.append(load(path)))
    assert len(found) == bool(words)
    for text in found:
        assert text.startswith("Training a new head: the head of")
        assert text.endswith(words)
    has_head = "output_weights" in start().shapes
    assert has_head == (not words)
    assert (loaded[0].model.random_variables is None) == has_head


def test_another_problem_is_kept_with_a_warning(saved, caplog):
    path = saved(problem_type="multi_label_classification")
    assert not warnings_of(caplog, load, path)
    model = load(path, problem="single_label").model
    assert "is kept, but its problem type is multi_label" in caplog.text
    assert model.random_variables is None


def test_a_vocabulary_that_does_not_fit(saved):
    path = saved(vocab=(*VOCAB, "zzz"))
    found = refusal(load, path)
    options = StartOptions(init_checkpoint=f"{path}/bert_model.ckpt")
    assert found == refusal(find_start, options)
    assert "more than the model's vocab_size" in found


@pytest.fixture
def doors(student):
    """Returns how a script and `fit` refuse a teacher."""

    def found(teacher):
        return (
            refusal(find_teacher, teacher, student.make_task(), list),
            refusal(student.fit, ["good"], ["good"], teacher=teacher),
        )

    return found


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"vocab": VOCAB[::-1]}, "has another vocabulary than the model to"),
        ({"do_lower_case": False}, "another casing than the model to train"),
        ({"vocab": None}, "needs its bert_config.json and vocab.txt"),
        ({"config": None}, "needs its bert_config.json and vocab.txt"),
        (
            {"config": dataclasses.replace(CONFIG, max_position_embeddings=9)},
            "must be at most 9, the max_position_embeddings of the teacher",
        ),
        (
            {"model": lambda: BertModel(CONFIG), "head": "encoder"},
            "is not a fine-tuned model of this task: it has no such head",
        ),
        ({"lacks": "pooler"}, "model of this task: it has no pooler"),
        ({"model": three, "labels": None}, "its head has 3 outputs, not 2"),
        ({"head": "choice"}, "its head is choice, not classifier"),
        ({"problem_type": "regression"}, PROBLEM),
        ({"labels": ("a", "b")}, "has the labels a and b; the model to train"),
        ({"activation_fn": SIGMOID}, f"records the activation_fn {SIGMOID}"),
    ],
)
def test_teachers_that_do_not_fit(saved, doors, facts, words):
    script, fit = doors(saved(**facts))
    assert script == fit
    assert words in fit


def test_teachers_may_lack_some_records(saved, student):
    path = saved(do_lower_case=None, labels=None, max_seq_length=99)
    assert find_teacher(path, student.make_task(), list)
