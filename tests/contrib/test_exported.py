"""Opening exports."""

import json
import shutil

import numpy as np
import pytest

from bert_tf.contrib import exported as opening
from bert_tf.contrib.exported import join_rows, open_export
from bert_tf.data.schema import INPUTS
from bert_tf.errors import InputError
from bert_tf.serving.readme import WEIGHTS
from tests.contrib.opened_exports import opened
from tests.serving import small_exports
from tests.serving.small_served import LENGTH, NASTY, answer_tokens, tokenize

CARD_FILE = "assets.extra/model_card.json"
REQUESTS = "assets.extra/tf_serving_warmup_requests"
CARD = {
    "name": "a",
    "kind": "encoder",
    "source": None,
    "labels": [],
    "encoding": {
        "max_seq_length": 9,
        "do_lower_case": True,
        "strip_accents": None,
    },
    "vocab_size": 7,
    "parameters": 9,
    "dtype_policy": "float32",
    "weights": {},
}
TEXTS = np.array([text for text in NASTY if len(text) < 1000], object)


def test_joins_batches():
    parts = [
        {"a": np.ones((2, 3), np.int32), "b": np.array([1.5, 2.5])},
        {"a": np.full((1, 5), 7, np.int32), "b": np.array([3.5])},
    ]
    joined = join_rows(iter(parts))
    assert joined["a"].tolist() == [[1, 1, 1, 0, 0]] * 2 + [[7] * 5]
    assert joined["b"].tolist() == [1.5, 2.5, 3.5]


def test_opens_the_newest_complete_version(tmp_path):
    for name in ("9", "10", "11", "notes"):
        (tmp_path / "all" / name).mkdir(parents=True)
        if name != "11":
            (tmp_path / "all" / name / "saved_model.pb").touch()
    for name in ("vocab.txt", "model_card.json", "tf_serving_warmup_requests"):
        folder = "assets" if name == "vocab.txt" else "assets.extra"
        (tmp_path / "all" / "9" / folder).mkdir(exist_ok=True)
        (tmp_path / "all" / "9" / folder / name).write_text("[]")
    for path, message in [
        ("all", r"all/10: this is not an export .*: no assets/vocab\.txt"),
        ("all/9", "model_card.json: .*JSON object"),
        ("all/11", "all/11: there is no saved_model.pb"),
        ("nowhere", "nowhere: No such file"),
    ]:
        with pytest.raises(InputError, match=message):
            open_export(str(tmp_path / path))


@pytest.fixture
def copy(tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(small_exports.path_of("pairs"), folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("share", [0, 0.5])
@pytest.mark.parametrize(
    "name", ["saved_model.pb", "variables/variables.index", WEIGHTS]
)
def test_refuses_a_damaged_model_in_one_line(copy, name, share):
    content = (copy / name).read_bytes()
    (copy / name).write_bytes(content[: int(share * len(content))])
    message = f"^{copy}: the SavedModel cannot be loaded: [^\n]*$"
    with pytest.raises(InputError, match=message):
        open_export(str(copy))


@pytest.mark.slow
def test_refuses_missing_labels_and_damaged_requests(copy):
    exported = open_export(str(copy))
    (copy / "assets" / "labels.txt").unlink()
    with pytest.raises(InputError, match=r"cannot be loaded: .*labels\.txt"):
        open_export(str(copy))
    requests = copy / REQUESTS
    for content in (b"", b"x" * 99):
        requests.write_bytes(content)
        with pytest.raises(InputError, match=f"^{requests}: .*are damaged"):
            exported.example()


def write_card(path, values):
    """Writes a card without the values that are `...`."""
    card = {name: value for name, value in values.items() if value is not ...}
    path.write_text(json.dumps(card), "utf-8")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        *(
            ({name: ...}, f"'{name}' must be .*; got nothing")
            for name in ("name", "kind", "source", "labels", "encoding")
        ),
        ({"dtype_policy": ...}, "'dtype_policy' must be a string; got nothing"),
        ({"dtype_policy": 3}, "'dtype_policy' must be a string; got 3"),
        ({"vocab_size": True}, "'vocab_size' must be a number; got True"),
        ({"encoding": {}}, "'max_seq_length' must be a number; got nothing"),
    ],
)
def test_refuses_a_card_with_wrong_values(tmp_path, changes, message):
    for name in ("saved_model.pb", "assets/vocab.txt", CARD_FILE, REQUESTS):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    write_card(tmp_path / CARD_FILE, CARD | changes)
    with pytest.raises(InputError, match=f"^{tmp_path / CARD_FILE}: {message}"):
        open_export(str(tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weights": {"sha256": "0"}}, f"{WEIGHTS} does not have the checksum"),
        (
            {"vocabulary": {"sha256": "0"}},
            r"vocab\.txt does not have the checksum",
        ),
        (
            {"labels": ["cat", "é", "x"]},
            r"the labels differ from .*labels\.txt",
        ),
        ({"vocab_size": 10**6}, r"vocab_size does not fit the model's"),
        ({"kind": "tagger"}, "the kind does not fit the model's outputs"),
        # Cards of earlier versions.
        ({"vocabulary": ...}, None),
    ],
)
def test_refuses_the_card_of_another_export(copy, changes, message):
    path = copy / CARD_FILE
    write_card(path, json.loads(path.read_text("utf-8")) | changes)
    if message is None:
        open_export(str(copy))
        return
    with pytest.raises(InputError, match=f"^{path}: .*{message}"):
        open_export(str(copy))


@pytest.mark.slow
def test_answers_as_the_model(monkeypatch):
    path, served = small_exports.path_of("pairs"), small_exports.served("pairs")
    exported = open_export(str(path.parent))
    assert exported.card["labels"] == list(small_exports.LABELS)
    assert [*exported.inputs] == ["text_a", "text_b"]
    assert tuple(exported.token_inputs) == INPUTS
    assert [*exported.numbers] == ["probabilities", "probability"]
    assert [*exported.assets] == ["labels.txt", "vocab.txt"]
    files = [file for file in path.rglob("*") if file.is_file()]
    assert exported.size == sum(file.stat().st_size for file in files)
    assert {"MatMul", "Erf"} <= exported.ops
    assert "FastWordpieceTokenizeWithOffsets" not in exported.ops
    example = {k: v.tolist() for k, v in exported.example().items()}
    texts = served.example.items()
    assert example == {name: [rows[0].encode()] for name, rows in texts}
    # In several batches, the last one shorter.
    monkeypatch.setattr(opening, "_TEXTS_AT_A_TIME", 5)
    texts = {"text_a": TEXTS, "text_b": TEXTS[::-1]}
    features, seen = exported.features(texts), tokenize(served, texts)
    for name in INPUTS:
        np.testing.assert_array_equal(features[name], seen[name])
    assert features["input_ids"].shape == (len(TEXTS), LENGTH)
    expected = answer_tokens(served, features)
    for name, values in exported.answer_tokens(features).items():
        np.testing.assert_allclose(values, expected[name], atol=1e-6)


@pytest.mark.slow
def test_rows_of_long_texts_without_padding():
    served = small_exports.served("answers")
    texts = {
        "question": np.array([b"the cat", b"", b"on mat"], object),
        "context": np.array([b"the cat sat", b"a" * 99, b"b c " * 19], object),
    }
    features = opened("answers").features(texts)
    seen = tokenize(served, texts)
    counts = seen["num_windows"]
    assert len(set(counts.tolist())) > 1
    is_row = np.arange(counts.max()) < counts[:, np.newaxis]
    for name in INPUTS:
        np.testing.assert_array_equal(features[name], seen[name][is_row])
