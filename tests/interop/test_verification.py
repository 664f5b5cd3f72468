"""A verification that finds what is wrong."""

import dataclasses
import re

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
from bert_tf.interop.checkpoint import HEADS
from bert_tf.interop.conversion import Check, probe_batch
from bert_tf.interop.huggingface import numbered_labels
from bert_tf.pretrained import open_pretrained


def written(folder, head, to="google", **how):
    """A conversion and where it was written."""
    weights = arrays(head)
    source = pretrained(head, weights=Arrays({**weights, **slots(weights)}))
    planned = conversion.plan(source, to, **how)
    conversion.write(planned, str(folder))
    return planned


def verify(planned, folder):
    return conversion.verify(planned, open_pretrained(folder))


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


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        ([1.0, 2.0], [1.0, 2.5], 0.5),
        ([1.0, np.nan], [1.0, np.nan], 0),
        ([np.inf, -np.inf], [np.inf, -np.inf], 0),
        ([1.0, np.nan], [1.5, 1.0], np.nan),
        ([np.inf, 1.0], [-np.inf, 1.0], np.inf),
        ([1.0], [1.0, 1.0], np.inf),
    ],
)
def test_the_distance_hides_nothing(ours, theirs, expected):
    """Python's max() forgets a NaN that is not the first."""
    same = {"a": np.zeros(3), "z": np.ones(3)}
    distance = conversion._distance(
        same | {"b": np.array(ours)}, same | {"b": np.array(theirs)}
    )
    np.testing.assert_equal(distance, expected)


def test_weights_are_compared_by_their_bits(tmp_path):
    planned = written(tmp_path, "classifier")
    weights = planned.source.weights
    weights["output_bias"][1:3] = np.nan, 0
    conversion.write(planned, str(tmp_path))
    first, _, outputs = verify(planned, str(tmp_path))[:3]
    assert first.difference == outputs.difference == 0
    weights["output_bias"][2] = -0.0
    assert failed(verify(planned, str(tmp_path))) == ["weights that differ"]


def test_another_precision_is_no_difference(tmp_path):
    planned = written(tmp_path, "encoder", "huggingface")
    weights = planned.source.weights
    for name, value in weights.items():
        weights[name] = np.asarray(value, "float64")
    assert failed(verify(planned, str(tmp_path))) == []


@pytest.mark.parametrize("to", conversion.FORMATS)
def test_all_that_is_known_gets_through(tmp_path, to):
    source = pretrained(
        "classifier",
        strip_accents=False,
        labels=numbered_labels(5),
        problem_type="regression",
        classifier_dropout=0.5,
    )
    planned = conversion.plan(source, to)
    conversion.write(planned, str(tmp_path))
    assert failed(verify(planned, str(tmp_path))) == []
    for change in ({"problem_type": None}, {"strip_accents": None}):
        changed = dataclasses.replace(planned.target, **change)
        assert conversion._different_facts(planned.target, changed) == 1


@pytest.fixture
def transformers_raises(monkeypatch):
    """Lets transformers fail for every folder."""

    def let(error):
        def run(folder, head, probe):
            raise error

        monkeypatch.setattr(conversion, "has_transformers", lambda: True)
        monkeypatch.setattr(conversion, "run_transformers", run)
        monkeypatch.setattr(
            conversion, "_failures_of_hub", lambda: (StrictDataclassError,)
        )

    return let


class StrictDataclassError(Exception):
    """As huggingface_hub's, where that is not installed."""


@pytest.mark.parametrize(
    ("error", "holds", "reason"),
    [
        (ValueError("not\nso"), False, "FAILED, transformers .*: not so"),
        (KeyError("x"), False, "FAILED, .*: 'x'"),
        (AssertionError(), False, "FAILED, .*: AssertionError"),
        (OSError("{folder} is odd"), False, "FAILED, .* is odd"),
        (StrictDataclassError("int"), False, "FAILED, .*: int"),
        (ImportError("no torch"), True, "skipped, .*: no torch"),
    ],
)
def test_transformers_may_fail_in_one_line(
    tmp_path, transformers_raises, error, holds, reason
):
    planned = written(tmp_path, "encoder", "huggingface")
    error.args = tuple(x.format(folder=tmp_path) for x in error.args)
    transformers_raises(error)
    check = verify(planned, str(tmp_path))[-1]
    assert check.holds == holds
    assert check.what == "outputs of what was written, in transformers"
    assert re.search(f": {reason}", str(check))
    assert "\n" not in str(check)
    assert " ok" not in str(check)


def test_what_was_read_may_be_none_of_transformers(
    tmp_path, transformers_raises
):
    written(tmp_path, "encoder", "huggingface")
    source = open_pretrained(str(tmp_path))
    planned = conversion.plan(source, "google")
    (tmp_path / "out").mkdir()
    conversion.write(planned, str(tmp_path / "out"))
    transformers_raises(RuntimeError("odd"))
    check = verify(planned, str(tmp_path / "out"))[-1]
    assert check.what == "outputs of what was read, in transformers"
    assert check.holds
    assert str(check).endswith(f"cannot run {tmp_path}: odd")


def test_an_encoder_may_have_no_pooler(tmp_path):
    source = pretrained("encoder", weights=arrays("encoder", pooler=False))
    planned = conversion.plan(source, "huggingface")
    conversion.write(planned, str(tmp_path))
    assert failed(verify(planned, str(tmp_path))) == []
