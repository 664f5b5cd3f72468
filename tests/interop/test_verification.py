"""A verification that finds what is wrong."""

import numpy as np
import pytest
from interop.small_models import (
    CONFIG,
    Arrays,
    arrays,
    pretrained,
    slots,
)

from bert_tf.interop import conversion, google
from bert_tf.interop.pretrained import HEADS
from bert_tf.interop.verification import Check, probe_batch, verify


def written(folder, head, to="google", **how):
    """A conversion and where it was written."""
    weights = arrays(head)
    source = pretrained(head, weights=Arrays({**weights, **slots(weights)}))
    planned = conversion.plan(source, to, **how)
    conversion.write(planned, str(folder))
    return planned


def failed(checks):
    return [check.what for check in checks if not check.holds]


@pytest.mark.parametrize(
    ("head", "to"),
    [(head, "huggingface") for head in HEADS]
    + [("pretraining", "google"), ("token", "keras")],
)
def test_what_is_right_passes(tmp_path, head, to):
    planned = written(tmp_path, head, to)
    checks = verify(planned, str(tmp_path))
    assert len(checks) >= 3
    assert failed(checks) == []


def test_another_weight(tmp_path):
    planned = written(tmp_path, "classifier")
    weights = arrays("classifier")
    weights["output_bias"][3] += 1
    google.write(str(tmp_path), pretrained("classifier", weights=weights))
    first, _, outputs = verify(planned, str(tmp_path))[:3]
    assert first.difference == 1
    assert outputs.difference == pytest.approx(1, rel=1e-5)
    assert not first.holds
    assert not outputs.holds


def test_another_slot(tmp_path):
    planned = written(tmp_path, "encoder", keep_optimizer=True)
    assert failed(verify(planned, str(tmp_path))) == []
    weights = planned.source.weights
    kept = {n: weights[n] for n in planned.bookkeeping}
    name = "bert/pooler/dense/bias/adam_v"
    google.write(str(tmp_path), planned.target, {**kept, name: kept[name] + 1})
    assert failed(verify(planned, str(tmp_path))) == ["weights that differ"]


@pytest.mark.parametrize("name", ["vocab.txt", "bert_tf.json"])
def test_a_lost_file(tmp_path, name):
    planned = written(tmp_path, "encoder")
    (tmp_path / name).unlink()
    assert failed(verify(planned, str(tmp_path))) == ["facts that differ"]


def test_what_is_no_number_does_not_pass():
    assert not Check("x", float("nan"), 1.0).holds
    assert str(Check("x", 0.5, 1.0)).endswith("x: 0.5 (at most 1) ok")
    assert str(Check("x", 2.0, 1.0)).endswith("FAILED")


def test_probes_have_padding_and_two_segments():
    batch = probe_batch(CONFIG, "encoder")
    ids, mask = batch["input_ids"], batch["input_mask"]
    assert ids.shape == mask.shape == (3, 19)
    assert mask.sum(axis=1).tolist() == [19, 10, 1]
    assert (ids[mask == 0] == 0).all()
    assert ids.max() < CONFIG.vocab_size
    assert np.unique(batch["segment_ids"][0]).tolist() == [0, 1]
    choices = probe_batch(CONFIG, "choice")
    assert choices["input_ids"].shape == (1, 3, 19)
