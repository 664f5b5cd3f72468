"""Next tokens from records of masked words, alone and in packed rows."""

import itertools

import numpy as np
import pytest

from bert_tf.data import pipeline, records
from bert_tf.data.records import pretraining_schema
from bert_tf.data.sequence_packing import SequencePacking
from bert_tf.errors import InputError
from bert_tf.kinds.pretraining.data import (
    PretrainingData,
    inspect_files,
    next_tokens,
)

N, S, P, V = 23, 11, 4, 97
CLS, SEP, MASK = 1, 2, 3
SCHEMA = pretraining_schema(S, P)


def examples() -> tuple[dict[str, np.ndarray], list[np.ndarray]]:
    """Returns records, and the tokens of each before masking."""
    random = np.random.default_rng(7)
    lengths = random.integers(3, S + 1, (N, 1))
    mask = (np.arange(S) < lengths).astype("int32")
    ids = (random.integers(5, V, (N, S)) * mask).astype("int32")
    ids[:, 0] = CLS
    np.put_along_axis(ids, lengths - 1, SEP, axis=1)
    weights = np.arange(P) < random.integers(1, lengths - 1)
    # Some of the first P words after [CLS] are masked.
    positions = np.arange(1, P + 1, dtype="int32") * weights
    masked = ids.copy()
    rows, slots = np.nonzero(weights)
    masked[rows, positions[rows, slots]] = MASK
    return {
        "input_ids": masked,
        "input_mask": mask,
        "segment_ids": mask * 0,
        "masked_lm_positions": positions,
        "masked_lm_ids": np.take_along_axis(ids, positions, axis=1) * weights,
        "masked_lm_weights": weights.astype("float32"),
        "next_sentence_labels": np.zeros((N, 1), "int32"),
    }, [row[: length[0]] for row, length in zip(ids, lengths, strict=True)]


EXAMPLES, TEXTS = examples()
# Each token of a text with the next one.
PAIRS = [p for text in TEXTS for p in itertools.pairwise(text.tolist())]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = str(tmp_path_factory.mktemp("records") / "x.tfrecord")
    records.write(path, records.encode_batch(SCHEMA, EXAMPLES))
    return path


def predicted(batch) -> list[tuple[int, int]]:
    """Returns each token that has a weight with the one to predict."""
    counts = np.array(batch["next_token_weights"]) > 0
    names = "input_ids", "next_token_ids"
    columns = (np.array(batch[name])[counts].tolist() for name in names)
    return list(zip(*columns, strict=True))


@pytest.mark.parametrize("has_labels", [True, False])
def test_every_token_is_predicted_but_the_first(has_labels):
    batch = {
        name: values
        for name, values in EXAMPLES.items()
        if has_labels or name != "next_sentence_labels"
    }
    found = next_tokens(batch)
    assert not {"masked_lm_ids", "masked_lm_positions"} & found.keys()
    assert ("next_sentence_labels" in found) == has_labels
    for row, text in zip(found["input_ids"].numpy(), TEXTS, strict=True):
        assert row.tolist() == text.tolist() + [0] * (S - len(text))
    assert predicted(found) == PAIRS
    assert found["next_token_ids"].shape == (N, S)
    assert np.sum(found["next_token_weights"]) == len(PAIRS)


@pytest.mark.parametrize("is_packed", [False, True])
def test_no_example_predicts_another(path, is_packed):
    data = PretrainingData([path], [path], SCHEMA, V, 1, None, is_packed, True)
    batches = data.evaluation(batch_size=5)
    found = [p for batch in batches for p in predicted(batch)]
    assert sorted(found) == sorted(PAIRS)
    assert {batch["input_ids"].shape for batch in batches} == {(5, S)}
    if is_packed:
        fill = pipeline.fill([path], SCHEMA, SequencePacking())
        assert len(batches) == -(-fill.rows // 5) < -(-N // 5)
        assert data.examples_per_row(32) == N / fill.rows
    else:
        assert data.examples_per_row(32) == 1.0


def test_packing_without_next_sentence_labels(path):
    schema = [f for f in SCHEMA if f.name != "next_sentence_labels"]
    data = PretrainingData([path], [path], schema, V, 1, is_packed=True)
    [batch] = data.training(batch_size=3).take(1)
    assert "next_sentence_labels" not in batch
    assert batch["masked_lm_ids"].shape == (3, P)


def test_truncated_files_are_noticed_before_training(path, write):
    with open(path, "rb") as file:
        cut = write(file.read()[:-20])
    assert inspect_files([path], [cut], skips_corrupt=False).counts is None
    with pytest.raises(InputError, match="truncated in record 22"):
        inspect_files([cut], [path], skips_corrupt=False)
    found = inspect_files([cut], [path], skips_corrupt=True)
    assert found.counts == {cut: 22, path: N}
