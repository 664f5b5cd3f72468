"""Features of real texts, compared with records that Google's code wrote.

Unmodified google-research/bert wrote them with TF 1.15 and the uncased
vocabulary; see ../shared/data/README.md.
"""

import csv

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf

from bert_tf.data import records
from bert_tf.data.records import classification_schema, pretraining_schema
from bert_tf.tasks.encoding import Encoding
from bert_tf.tasks.examples import Example
from bert_tf.tokenization.wordpiece import FullTokenizer

SCHEMA = classification_schema(128)


@pytest.fixture(scope="module")
def tokenizer(shared_data):
    return FullTokenizer(shared_data / "vocab" / "bert-base-uncased-vocab.txt")


def example_of(row):
    """MRPC has the class in column 0 and the pair in columns 3 and 4."""
    return Example("", row[3], row[4], label=row[0])


def rows_of(path):
    with open(path, encoding="utf-8") as file:
        return list(csv.reader(file, delimiter="\t", quoting=3))[1:]


def serialized(path):
    return list(tf.data.TFRecordDataset(str(path)).as_numpy_iterator())


def parse(schema, examples):
    spec = {f.name: tf.io.FixedLenFeature(f.shape, f.dtype) for f in schema}
    parsed = tf.io.parse_example(examples, spec)
    return {name: values.numpy() for name, values in parsed.items()}


def in_any_order(example):
    """Returns the features of a record and its sorted bytes.

    The order of a protobuf map is undefined: Google's records have
    is_real_example second, ours are sorted.
    """
    parsed = tf.train.Example.FromString(example)
    return parsed.features, sorted(example)


@pytest.mark.parametrize(
    ("split", "file", "count"),
    [
        # test_mrpc_in_the_graph has the training examples.
        pytest.param(
            *("train", "train.tf_record", 3668), marks=pytest.mark.slow
        ),
        ("dev", "eval.tf_record", 408),
    ],
)
def test_mrpc(shared_data, tokenizer, fidelity, tmp_path, split, file, count):
    path = shared_data / "google_bert_outputs" / "mrpc" / file
    rows = rows_of(shared_data / "glue" / "MRPC" / f"{split}.tsv")
    vocab = tuple(tokenizer.vocab)
    encoding = Encoding(vocab, True, None, 128, "single_label", ("0", "1"))
    written = str(tmp_path / file)
    assert encoding.write(written, list(map(example_of, rows)))
    theirs, ours = serialized(path), serialized(written)
    assert len(theirs) == len(rows) == count
    assert records.check_first_record(str(path), encoding.schema)
    expected = parse(SCHEMA, theirs)
    wrong = [
        (values != expected[name]).reshape(count, -1).any(axis=1)
        for name, values in parse(SCHEMA, ours).items()
    ]
    check = f"records: MRPC {split}: of Google's {count:,} records"
    fidelity(f"{check}, those with other values", np.any(wrong, 0).sum(), 0)
    fidelity(
        f"{check}, those with other bytes (the order of the map aside)",
        sum(
            in_any_order(mine) != in_any_order(other)
            for mine, other in zip(ours, theirs, strict=True)
        ),
        0,
    )


def test_mrpc_in_the_graph(shared_data, fidelity):
    """The features that an exported model computes from the same strings."""
    graph = pytest.importorskip("bert_tf.tokenization.graph")
    vocabulary = shared_data / "vocab" / "bert-base-uncased-vocab.txt"
    layer = graph.BertTokenizer(vocabulary, max_seq_length=128)
    rows = rows_of(shared_data / "glue" / "MRPC" / "train.tsv")
    pair = tuple(zip(*(row[3:5] for row in rows), strict=True))
    ours = layer(tuple(map(tf.constant, pair)))
    path = shared_data / "google_bert_outputs" / "mrpc" / "train.tf_record"
    theirs = parse(SCHEMA, serialized(path))
    wrong = [
        (values.numpy() != theirs[name]).any(axis=1)
        for name, values in ours.items()
    ]
    fidelity(
        "records: MRPC train: of Google's 3,668 records, those of which "
        "BertTokenizer makes other features",
        np.any(wrong, axis=0).sum(),
        0,
    )


def unmasked(batch):
    """Yields the texts of each pre-training example, before masking."""
    for row, ids in enumerate(batch["input_ids"].copy()):
        real = batch["masked_lm_weights"][row] > 0
        positions = batch["masked_lm_positions"][row][real]
        ids[positions] = batch["masked_lm_ids"][row][real]
        second = batch["segment_ids"][row] == 1
        first = (batch["input_mask"][row] == 1) & ~second
        # Without [CLS] and [SEP].
        yield ids[first][1:-1].tolist()
        yield ids[second][:-1].tolist()


def contains(run, part):
    starts = range(len(run) - len(part) + 1)
    return any(run[start : start + len(part)] == part for start in starts)


def test_texts_of_pretraining_records(shared_data, tokenizer, fidelity):
    """The pairs depend on the seed; the texts do not."""
    folder = shared_data / "google_bert_outputs" / "pretraining"
    batch = parse(
        pretraining_schema(128, 20), serialized(folder / "tf_examples.tfrecord")
    )
    text = shared_data / "pretraining_text" / "sample_text.txt"
    documents = [
        [i for line in document.splitlines() for i in tokenizer.encode(line)]
        for document in text.read_text(encoding="utf-8").split("\n\n")
    ]
    texts = [*unmasked(batch)]
    assert len(texts) == 120
    assert all(texts)
    strange = [
        part
        for part in texts
        if not any(contains(document, part) for document in documents)
    ]
    fidelity(
        "records: pre-training: of the 120 texts in Google's 60 records, "
        "those that are no run of our pieces of sample_text.txt",
        len(strange),
        0,
    )
