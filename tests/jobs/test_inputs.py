"""Records of the splits of a data set, and batches of them."""

import dataclasses
import types

import numpy as np
import pytest

from bert_tf.data.buckets import Padding
from bert_tf.jobs.fine_tuning import Inputs, Split
from bert_tf.tasks.encoding import Encoding
from bert_tf.tasks.examples import Example
from bert_tf.training.settings import TrainingConfig

VOCAB = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "A")
ENCODING = Encoding(VOCAB, True, None, 7, "single_label", ("no", "yes"))
EXAMPLES = [
    Example("0", "a b a", label="yes"),
    Example("1", "A", label="no"),
    Example("2", "b b b b b b", label="yes"),
]


@pytest.fixture
def part(tmp_path):
    """Returns as much of a `Part` as is needed here."""
    path = tmp_path / "dev.tsv"
    path.write_text("any")
    return types.SimpleNamespace(
        suffix="_mismatched",
        files=(str(path),),
        submission="MNLI-mm.tsv",
    )


@pytest.fixture
def inputs(tmp_path):
    return Inputs(str(tmp_path / "out"), ENCODING, Padding(multiple=1))


def rows(batches):
    return [
        {name: value.tolist() for name, value in batch.items()}
        for batch in batches.as_numpy_iterator()
    ]


@pytest.mark.parametrize(
    ("split", "name"),
    [
        ("train", "train_mismatched.tf_record"),
        ("dev", "eval_mismatched.tf_record"),
        ("test", "predict_mismatched.tf_record"),
    ],
)
def test_records_have_the_file_names_of_the_original(
    inputs, part, tmp_path, split, name
):
    loaded = inputs.load(split, part, EXAMPLES)
    assert (tmp_path / "out" / name).exists()
    assert loaded.examples is EXAMPLES
    assert (loaded.suffix, loaded.submission) == ("_mismatched", "MNLI-mm.tsv")
    assert loaded.features.lengths.tolist() == [5, 3, 7]
    labels = loaded.features.arrays["label_ids"]
    assert labels.tolist() == [1, 0, 1]


@pytest.fixture
def load_again(inputs, part, tmp_path):
    """Loads features with other inputs; returns whether records are rebuilt."""
    inputs.load("dev", part, EXAMPLES)
    path = tmp_path / "out" / "manifest.eval_mismatched.tf_record.json"
    before = path.read_bytes()

    def load(inputs):
        features = inputs.load("dev", part, EXAMPLES).features
        return features, path.read_bytes() != before

    return load


def test_records_are_reused(inputs, load_again, caplog):
    caplog.set_level("INFO", "absl")
    _, rebuilt = load_again(dataclasses.replace(inputs, padding=Padding(3)))
    assert not rebuilt
    assert "eval_mismatched.tf_record again" in caplog.text


@pytest.mark.parametrize(
    "changes",
    [
        {"max_seq_length": 5},
        {"do_lower_case": False},
        {"strip_accents": False},
        {"vocab": VOCAB[:-1]},
        {"labels": ("yes", "no")},
    ],
)
def test_records_are_rebuilt_for_another_encoding(inputs, load_again, changes):
    other = dataclasses.replace(ENCODING, **changes)
    features, rebuilt = load_again(dataclasses.replace(inputs, encoding=other))
    assert rebuilt
    assert features.max_seq_length == other.max_seq_length
    word = VOCAB.index("a" if other.do_lower_case else "A")
    assert features.arrays["input_ids"][1].tolist()[:3] == [2, word, 3]
    yes = other.labels.index("yes")
    assert features.arrays["label_ids"].tolist() == [yes, 1 - yes, yes]


def test_records_are_rebuilt_for_another_file(inputs, load_again, tmp_path):
    (tmp_path / "dev.tsv").write_text("other")
    assert load_again(inputs)[1]


def test_training_batches_follow_the_config(inputs, part):
    split = inputs.load("train", part, EXAMPLES)
    config = TrainingConfig(
        train_batch_size=3, num_train_steps=4, num_warmup_steps=0, random_seed=5
    )
    make = inputs.training_data(split, config)
    batches = rows(make(batch_size=3).take(4))
    for batch in batches:
        assert sorted(batch["label_ids"]) == [0, 1, 1]
        assert np.shape(batch["input_ids"]) == (3, 7)
    again = rows(make(batch_size=3, start_example=6).take(2))
    assert again == batches[2:]


def test_batches_have_the_requested_padding(inputs, part):
    for static in (False, True):
        padding = Padding(multiple=1, static=static)
        padded = dataclasses.replace(inputs, padding=padding)
        split = padded.load("dev", part, EXAMPLES)
        batches = rows(padded.evaluation_data(split)(batch_size=1))
        lengths = {np.shape(batch["input_ids"])[1] for batch in batches}
        assert lengths == ({7} if static else {3, 5, 7})
        found = [i for batch in batches for i in batch["example_index"]]
        assert sorted(i for i in found if i >= 0) == [0, 1, 2]


class Estimator:
    """Has the number of examples as its accuracy."""

    def evaluate(self, make_data):
        batches = rows(make_data(batch_size=1))
        real = sum(i for batch in batches for i in batch["is_real_example"])
        return {"eval_accuracy": real, "loss": 0.5, "global_step": 11}


def test_metrics_have_the_suffix_of_their_part(inputs, part):
    second = inputs.load("dev", part, EXAMPLES)
    part.suffix = ""
    first = inputs.load("dev", part, EXAMPLES[:2])
    assert inputs.evaluate([first, second], Estimator()) == {
        "eval_accuracy": 2,
        "loss": 0.5,
        "eval_accuracy_mismatched": 3,
        "loss_mismatched": 0.5,
        "global_step": 11,
    }


def test_no_splits_have_no_metrics(inputs):
    assert inputs.evaluate([], Estimator()) == {}


def test_a_split_has_no_suffix_by_default(inputs, part):
    features = inputs.load("dev", part, EXAMPLES).features
    split = Split(EXAMPLES, features)
    assert (split.suffix, split.submission) == ("", None)
