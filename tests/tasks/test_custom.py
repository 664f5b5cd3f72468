"""Custom data sets."""

import gzip
import json

import pytest

from bert_tf.errors import InputError
from bert_tf.tasks.datasets import custom_data_set

ROWS = [("good film", "pos"), ("bad film", "neg"), ("a film", "pos")]
HEADER = ("text", "label")
MULTI = {"problem": "multi_label"}


@pytest.fixture
def folder_of(write, tmp_path):
    """Returns a function that writes files and returns their folder."""

    def folder_of(**texts):
        for name, text in texts.items():
            write(text, name.replace("_", "."))
        return str(tmp_path)

    return folder_of


def tsv(*rows):
    return "".join("\t".join(row) + "\n" for row in rows)


def read(data_set, split, folder):
    [part] = data_set.split(split, folder)
    return [(e.text_a, e.label) for e in part.read()]


@pytest.mark.parametrize("extension", ["tsv", "csv", "jsonl", "csv.gz"])
def test_all_file_formats_are_read(tmp_path, extension):
    objects = [{"text": t, "label": x} for t, x in ROWS]
    text = {
        "tsv": tsv(HEADER, *ROWS),
        "csv": "label,text\n" + "".join(f'{x},"{t}"\n' for t, x in ROWS),
        "jsonl": "".join(json.dumps(row) + "\n" for row in objects),
    }[extension.removesuffix(".gz")].encode()
    content = gzip.compress(text) if extension.endswith(".gz") else text
    (tmp_path / f"train.{extension}").write_bytes(content)
    found = custom_data_set(str(tmp_path))
    assert (found.name, found.model_of) == ("custom", "custom")
    assert found.labels == ("neg", "pos")
    assert found.with_labels(("pos", "neg")).positive_label == "pos"
    assert not found.is_pair
    assert read(found, "train", str(tmp_path)) == ROWS


def test_pairs_ids_and_other_file_names(folder_of, tmp_path, monkeypatch):
    folder = folder_of(
        mine_tsv=tsv(("n", "q", "a", "y"), ("x1", "one", "two", "0")),
        validation_csv="n,q,a,y\nx2,three,four,1\n",
    )
    (tmp_path / "elsewhere").mkdir()
    path = tmp_path / "elsewhere" / "other.jsonl"
    path.write_text('{"n": 3, "q": "five", "a": "six"}')
    monkeypatch.chdir(path.parent)
    found = custom_data_set(
        folder,
        train_file="mine.tsv",
        test_file=path.name,  # In the working directory.
        text_a_column="q",
        text_b_column="a",
        id_column="n",
        label_column="y",
        labels=["0", "1"],
    )
    monkeypatch.chdir("/")
    assert found.is_pair
    examples = [
        found.split(split, folder)[0].read()[0]
        for split in ("train", "dev", "test")
    ]
    assert [(e.id, e.text_a, e.text_b, e.label) for e in examples] == [
        ("x1", "one", "two", "0"),
        ("x2", "three", "four", "1"),
        ("3", "five", "six", None),
    ]


@pytest.mark.parametrize(
    ("rows", "options", "labels"),
    [
        # Numbers are sorted by value.
        (["2", "10", "1"], {}, ("1", "2", "10")),
        (["10", "9", "x"], {}, ("10", "9", "x")),
        (["b", "a", "b"], {"labels": ["b", "a"]}, ("b", "a")),
        (["b, a", "", "c"], MULTI, ("a", "b", "c")),
        (["0.5", "3"], {"problem": "regression"}, ()),
    ],
)
def test_labels(folder_of, rows, options, labels):
    table = tsv(HEADER, *zip("xyzw", rows, strict=False))
    folder = folder_of(train_tsv=table)
    found = custom_data_set(folder, **options)
    assert found.labels == labels
    assert found.positive_label == (labels[-1] if labels else None)
    read(found, "train", folder)


def test_unknown_labels_of_another_file(folder_of):
    folder = folder_of(
        train_tsv=tsv(HEADER, *ROWS), dev_tsv=tsv(HEADER, ("x", "other"))
    )
    with pytest.raises(InputError, match=r":2: .*'other'.*'neg' and 'pos'\.$"):
        read(custom_data_set(folder), "dev", folder)


def test_prediction_needs_no_labels_in_files(folder_of, monkeypatch):
    folder = folder_of(test_tsv=tsv(("text",), ("a",)))
    found = custom_data_set(folder, labels=["a", "b"])
    assert read(found, "test", folder) == [("a", None)]
    # Without a folder, not even the working directory is searched.
    monkeypatch.chdir(folder_of(train_tsv=tsv(HEADER, *ROWS)))
    with pytest.raises(InputError, match="`labels`, or `data_dir` with a tr"):
        custom_data_set("")
    assert custom_data_set("", labels=["a", "b"]).labels == ("a", "b")


def test_several_labels_in_columns(folder_of):
    header = ("toxic", "text", "rude")
    folder = folder_of(
        train_tsv=tsv(header, ("1", "x", "0"), ("0", "y", "0")),
        dev_tsv=tsv(header[::-1], ("1", "x", "0")),
        test_tsv=tsv(("text",), ("x",)),
    )
    options = MULTI | {"label_column": "toxic, rude"}
    found = custom_data_set(folder, **options)
    assert found.labels == ("toxic", "rude")
    assert read(found, "train", folder) == [("x", ("toxic",)), ("y", ())]
    assert read(found, "dev", folder) == [("x", ("rude",))]
    assert read(found, "test", folder) == [("x", None)]
    # Numbered columns take the given labels in order.
    folder = folder_of(train_tsv=tsv(("x", "1", "0"), ("y", "0", "1")))
    options = MULTI | {"label_column": "1,2", "text_a_column": "0"}
    options |= {"has_header": False, "labels": ["a", "b"]}
    found = custom_data_set(folder, **options)
    assert read(found, "train", folder) == [("x", ("a",)), ("y", ("b",))]


@pytest.mark.parametrize(
    ("options", "text", "message"),
    [
        ({}, "text\tlabel\na\tx\nb\tx\n", "'label', found 'x'"),
        ({}, "text\tlabel\na\tx\nb\t\n", ":3: no label"),
        ({}, "text\tlabels\na\tx\n", r"Did you mean 'labels'\?"),
        ({"train_file": "no.tsv"}, "", r"no no\.tsv, .* pass the .* `labels`"),
        (
            {"problem": "regression", "labels": ["a"]},
            "",
            "`labels` must be left out",
        ),
        ({"labels": ["a"]}, "", "`labels` must be .* two different"),
        ({"labels": ["", "b"]}, "", "non-empty names; got"),
        (
            MULTI | {"label_column": "b,c", "labels": ["a", "b"]},
            "",
            r"each label \(a and b\); got \['b', 'c'\]",
        ),
        ({}, tsv(HEADER, *ROWS, ("torn",)), "2 columns"),
    ],
)
def test_invalid_arguments_and_files_are_errors(
    folder_of, options, text, message
):
    with pytest.raises(InputError, match=message):
        custom_data_set(folder_of(train_tsv=text), **options)


@pytest.mark.parametrize(("count", "warns"), [(97, True), (50, False)])
def test_many_labels_are_suspicious(folder_of, warnings, count, warns):
    rows = [(f"text {n}", f"label {n}") for n in range(count)]
    custom_data_set(folder_of(train_tsv=tsv(HEADER, *rows)))
    message = f"{count} different labels in {count} rows. Is 'label' the"
    assert (message in "".join(warnings)) is warns
