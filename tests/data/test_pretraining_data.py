"""Next tokens from records of masked words, alone and in packed rows."""

import itertools

import numpy as np
import pytest

from bert_tf.corpus import masking
from bert_tf.corpus.masking import MaskingVocabulary
from bert_tf.corpus.settings import CreationConfig
from bert_tf.data import pipeline, records
from bert_tf.data.pretraining_data import (
    PretrainingData,
    next_tokens,
    unmasked,
)
from bert_tf.data.records import ReadableRecords
from bert_tf.data.schema import pretraining_schema
from bert_tf.data.sequence_packing import SequencePacking

N, S, P, V = 23, 11, 4, 97
CLS, SEP, MASK, FIRST_WORD = 1, 2, 3, 5
SCHEMA = pretraining_schema(S, P)


def sequences() -> tuple[np.ndarray, np.ndarray]:
    """Returns [CLS] words [SEP] of 3 to 11 tokens, and their mask."""
    random = np.random.default_rng(7)
    lengths = random.integers(3, S + 1, (N, 1))
    mask = (np.arange(S) < lengths).astype("int32")
    ids = random.integers(FIRST_WORD, V, (N, S)) * mask
    ids[:, 0] = CLS
    np.put_along_axis(ids, lengths - 1, SEP, axis=1)
    return ids.astype("int32"), mask


def examples() -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Returns the records of the sequences, and the tokens before masking."""
    ids, mask = sequences()
    words = np.arange(FIRST_WORD, V)
    masked = masking.mask(
        ids,
        mask.astype(bool),
        CreationConfig(
            *("in", "out", "vocab"),
            max_predictions_per_seq=P,
            masked_lm_prob=0.4,
            mask_share=0.5,
            random_share=0.3,
            keep_share=0.2,
        ),
        MaskingVocabulary(MASK, (CLS, SEP), words, np.zeros(V, bool)),
        np.arange(N, dtype=np.uint64),
    )
    return {
        "input_ids": masked.input_ids,
        "input_mask": mask,
        "segment_ids": mask * 0,
        "masked_lm_positions": masked.positions,
        "masked_lm_ids": masked.ids,
        "masked_lm_weights": masked.weights,
        "next_sentence_labels": np.zeros((N, 1), "int32"),
    }, ids


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Returns data in a file, for a causal LM."""
    path = str(tmp_path_factory.mktemp("records") / "x.tfrecord")
    with records.RecordWriter(path) as writer:
        writer.write_all(records.encode_batch(SCHEMA, examples()[0]))
    return PretrainingData([path], [path], SCHEMA, V, 12345, is_causal=True)


def pairs(ids, mask) -> list[tuple[int, int]]:
    """Returns each token of a sequence with the next one."""
    tokens = ids[mask > 0].tolist()
    return [*itertools.pairwise(tokens)]


def predicted(batch) -> list[tuple[int, int]]:
    """Returns each token that has a weight with the one to predict."""
    counts = np.array(batch["next_token_weights"]) > 0
    return [
        *zip(
            np.array(batch["input_ids"])[counts].tolist(),
            np.array(batch["next_token_ids"])[counts].tolist(),
            strict=True,
        )
    ]


def test_unmasked():
    batch, ids = examples()
    assert (batch["input_ids"] != ids).any(axis=1).sum() > N / 2
    np.testing.assert_array_equal(unmasked(batch), ids)


def test_every_token_is_predicted_but_the_first():
    batch, ids = examples()
    found = next_tokens(batch)
    assert sorted(found) == [
        "input_ids",
        "input_mask",
        "next_sentence_labels",
        "next_token_ids",
        "next_token_weights",
        "segment_ids",
    ]
    np.testing.assert_array_equal(found["input_ids"], ids)
    expected = [
        p for row in zip(*sequences(), strict=True) for p in pairs(*row)
    ]
    assert predicted(found) == expected
    assert found["next_token_ids"].shape == (N, S)
    assert np.array(found["next_token_weights"]).sum() == len(expected)


def test_without_the_labels_of_the_next_sentence():
    batch, ids = examples()
    del batch["next_sentence_labels"]
    np.testing.assert_array_equal(next_tokens(batch)["input_ids"], ids)


@pytest.mark.parametrize("is_packed", [False, True])
def test_no_example_predicts_another(data, is_packed):
    data = PretrainingData(
        data.train_files, data.eval_files, SCHEMA, V, 1, None, is_packed, True
    )
    batches = data.evaluation(batch_size=5)
    found = [p for batch in batches for p in predicted(batch)]
    expected = [
        p for row in zip(*sequences(), strict=True) for p in pairs(*row)
    ]
    assert sorted(found) == sorted(expected)
    assert (SEP, CLS) not in found
    rows = {batch["input_ids"].shape for batch in batches}
    assert rows == {(5, S)}
    if is_packed:
        fill = pipeline.fill(data.train_files, SCHEMA, SequencePacking())
        assert len(batches) == -(-fill.rows // 5) < -(-N // 5)


def test_resumed_training(data):
    def first(**share):
        [batch] = data.training(**share).take(1).as_numpy_iterator()
        return batch["next_token_ids"]

    whole = first(batch_size=8)
    np.testing.assert_array_equal(
        first(batch_size=4, start_example=4), whole[4:]
    )


def test_packing_without_next_sentence_labels(data):
    schema = [f for f in SCHEMA if f.name != "next_sentence_labels"]
    data = PretrainingData(
        data.train_files, data.eval_files, schema, V, 1, is_packed=True
    )
    [batch] = data.training(batch_size=3).take(1)
    assert "next_sentence_labels" not in batch
    assert batch["masked_lm_ids"].shape == (3, P)


def test_files_are_not_checked_by_default(data):
    assert data.salvaged == ReadableRecords()
    assert data.examples_per_row(32) == 1.0
