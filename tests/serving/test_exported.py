"""An export, opened by whoever finds it."""

import json
import shutil

import numpy as np
import pytest

from bert_tf.errors import InputError
from bert_tf.serving import exported as opening
from bert_tf.serving.exported import join_rows, open_export
from bert_tf.serving.served import FEATURES
from tests.serving import small_exports
from tests.serving.small_served import LENGTH, NASTY, answer_tokens, tokenize

TEXTS = np.array([text for text in NASTY if len(text) < 1000], object)


def test_joins_batches():
    parts = [
        {"a": np.ones((2, 3), np.int32), "b": np.array([1.5, 2.5])},
        {"a": np.full((1, 5), 7, np.int32), "b": np.array([3.5])},
    ]
    joined = join_rows(iter(parts))
    assert joined["a"].tolist() == [[1, 1, 1, 0, 0]] * 2 + [[7] * 5]
    assert joined["a"].dtype == np.int32
    assert joined["b"].tolist() == [1.5, 2.5, 3.5]


@pytest.fixture
def folders(tmp_path):
    """Folders that look like exports, or nearly."""
    for name in ("9", "10", "11", "notes"):
        (tmp_path / "versions" / name).mkdir(parents=True)
        if name != "11":
            (tmp_path / "versions" / name / "saved_model.pb").touch()
    (tmp_path / "empty").mkdir()
    return tmp_path


def test_opens_the_newest_version(folders):
    """By number; what is not complete is none."""
    with pytest.raises(InputError, match=r"versions/10: .*: no assets/v"):
        open_export(str(folders / "versions"))
    with pytest.raises(InputError, match=r"versions/9: this is not an export"):
        open_export(str(folders / "versions" / "9"))


@pytest.mark.parametrize("name", ["empty", "versions/11"])
def test_refuses_a_folder_without_an_export(folders, name):
    with pytest.raises(InputError, match=f"{name}: there is no"):
        open_export(str(folders / name))


def test_refuses_a_missing_folder(folders):
    with pytest.raises(InputError, match="nowhere: No such file"):
        open_export(str(folders / "nowhere"))


@pytest.fixture
def copy(tmp_path):
    path = tmp_path / "copy"
    shutil.copytree(small_exports.path_of("pairs"), path)
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["saved_model.pb", "variables/variables.index"]
)
def test_refuses_a_damaged_model_in_one_line(copy, name):
    content = (copy / name).read_bytes()
    (copy / name).write_bytes(content[: len(content) // 2])
    with pytest.raises(InputError) as caught:
        open_export(str(copy))
    message = str(caught.value)
    assert f"{copy}: the SavedModel cannot be loaded: " in message
    assert "\n" not in message


@pytest.mark.slow
def test_its_properties():
    path = small_exports.path_of("pairs")
    exported = open_export(str(path.parent))
    assert exported.path == str(path)
    assert exported.card["labels"] == list(small_exports.LABELS)
    assert [*exported.inputs] == ["text_a", "text_b"]
    assert tuple(exported.token_inputs) == FEATURES
    assert [*exported.outputs] == [
        *("label", "labels", "probabilities", "probability")
    ]
    assert [*exported.numbers] == ["probabilities", "probability"]
    assert [*exported.assets] == ["labels.txt", "vocab.txt"]
    assert exported.num_segments == 2
    files = [file for file in path.rglob("*") if file.is_file()]
    assert exported.size == sum(file.stat().st_size for file in files)
    assert {"MatMul", "Erf"} <= exported.ops
    assert "FastWordpieceTokenizeWithOffsets" not in exported.ops
    example = small_exports.served("pairs").example
    assert {k: v.tolist() for k, v in exported.example().items()} == {
        name: [texts[0].encode()] for name, texts in example.items()
    }


@pytest.mark.slow
def test_answers_as_the_model(monkeypatch):
    served = small_exports.served("pairs")
    exported = open_export(str(small_exports.path_of("pairs")))
    texts = {"text_a": TEXTS, "text_b": TEXTS[::-1]}
    # In several batches, the last one shorter.
    monkeypatch.setattr(opening, "_TEXTS_AT_A_TIME", 5)
    features = exported.features(texts)
    seen = tokenize(served, texts)
    for name in FEATURES:
        np.testing.assert_array_equal(features[name], seen[name])
    assert features["input_ids"].shape == (len(TEXTS), LENGTH)
    answer = exported.answer_tokens(features)
    expected = answer_tokens(served, features)
    assert set(answer) == {"probabilities", "probability"}
    for name, values in answer.items():
        np.testing.assert_allclose(values, expected[name], atol=1e-6)


@pytest.mark.slow
def test_rows_of_long_texts_without_padding():
    """All rows of a text, and none of those that only fill up."""
    served = small_exports.served("answers")
    texts = {
        "question": np.array([b"the cat", b"", b"on mat"], object),
        "context": np.array([b"the cat sat", b"a" * 99, b"b c " * 19], object),
    }
    features = small_exports.opened("answers").features(texts)
    seen = tokenize(served, texts)
    counts = seen["num_windows"].tolist()
    assert len(set(counts)) > 1
    assert features["input_ids"].shape[0] == sum(counts) > len(counts)
    for name in FEATURES:
        rows = [
            row
            for text, count in zip(seen[name], counts, strict=True)
            for row in text[:count].tolist()
        ]
        assert features[name].tolist() == rows


def test_refuses_a_card_that_is_no_object(folders):
    path = folders / "versions" / "9"
    for name in ("assets/vocab.txt", "assets.extra/model_card.json"):
        (path / name).parent.mkdir()
        (path / name).write_text(json.dumps([]))
    (path / "assets.extra" / "tf_serving_warmup_requests").touch()
    with pytest.raises(InputError, match="JSON object"):
        open_export(str(path))
