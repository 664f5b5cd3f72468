import gzip
import json

import pytest

from bert_tf import metrics
from bert_tf.errors import InputError
from bert_tf.tasks import custom

ROWS = [("good film", "pos"), ("bad film", "neg"), ("a film", "pos")]


@pytest.fixture
def write(tmp_path):
    def write(**texts):
        for name, text in texts.items():
            stem, _, extension = name.rpartition("_")
            (tmp_path / f"{stem}.{extension}").write_text(text)
        return str(tmp_path)

    return write


def tsv(*rows):
    return "".join("\t".join(row) + "\n" for row in rows)


def read(data_set, split, folder):
    [part] = data_set.split(split, folder)
    return [(e.text_a, e.label) for e in part.read()]


def test_a_file_with_a_header(write):
    folder = write(train_tsv=tsv(("text", "label"), *ROWS))
    found = custom.data_set(folder)
    assert (found.name, found.model_of) == ("custom", "custom")
    assert found.labels == ("neg", "pos")
    assert found.with_labels(("pos", "neg")).positive_label == "pos"
    assert read(found, "train", folder) == ROWS


@pytest.mark.parametrize(
    "text",
    [
        "".join(json.dumps({"text": t, "label": x}) + "\n" for t, x in ROWS),
        "label,text\n" + "".join(f'{x},"{t}"\n' for t, x in ROWS),
    ],
)
def test_other_formats(write, text):
    name = "train_jsonl" if text.startswith("{") else "train_csv"
    folder = write(**{name: text})
    found = custom.data_set(folder)
    assert read(found, "train", folder) == ROWS


def test_pairs_ids_and_files_by_other_names(write, tmp_path):
    folder = write(
        mine_tsv=tsv(("n", "q", "a", "y"), ("x1", "one", "two", "0")),
        validation_csv="n,q,a,y\nx2,three,four,1\n",
    )
    (tmp_path / "elsewhere").mkdir()
    path = tmp_path / "elsewhere" / "other.jsonl"
    path.write_text('{"n": 3, "q": "five", "a": "six"}')
    found = custom.data_set(
        folder,
        train_file="mine.tsv",
        test_file=str(path),
        text_a_column="q",
        text_b_column="a",
        id_column="n",
        label_column="y",
        labels=["0", "1"],
    )
    examples = [
        found.split(split, folder)[0].read()[0]
        for split in ("train", "dev", "test")
    ]
    assert [(e.id, e.text_a, e.text_b, e.label) for e in examples] == [
        ("x1", "one", "two", "0"),
        ("x2", "three", "four", "1"),
        ("3", "five", "six", None),
    ]


@pytest.mark.parametrize("extension", ["tsv", "csv", "jsonl"])
def test_compressed_files_are_found(tmp_path, extension):
    rows = [("text", "label"), *ROWS]
    text = {
        "tsv": tsv(*rows),
        "csv": tsv(*rows).replace("\t", ","),
        "jsonl": "".join(
            f'{{"text": "{t}", "label": "{x}"}}\n' for t, x in ROWS
        ),
    }[extension]
    path = tmp_path / f"train.{extension}.gz"
    path.write_bytes(gzip.compress(text.encode()))
    found = custom.data_set(str(tmp_path))
    assert read(found, "train", str(tmp_path)) == ROWS


def test_a_path_from_here(write, monkeypatch, tmp_path):
    folder = write(mine_tsv=tsv(("text", "label"), *ROWS))
    monkeypatch.chdir(folder)
    other = tmp_path / "other"
    other.mkdir()
    found = custom.data_set(str(other), train_file="mine.tsv")
    monkeypatch.chdir("/")
    assert read(found, "train", str(other)) == ROWS


def test_without_a_header(write):
    folder = write(train_tsv=tsv(*ROWS), test_tsv="x\ny\n")
    options = {"text_a_column": "0", "label_column": "1", "has_header": False}
    found = custom.data_set(folder, **options)
    assert read(found, "train", folder) == ROWS
    assert read(found, "test", folder) == [("x", None), ("y", None)]
    with pytest.raises(InputError, match=r"has no header\. Received: 'text'"):
        custom.data_set(folder, label_column="1", has_header=False)


def test_labels_are_found_in_order(write):
    rows = [("a", "2"), ("b", "10"), ("c", "1")]
    folder = write(train_tsv=tsv(("text", "label"), *rows))
    assert custom.data_set(folder).labels == ("1", "2", "10")


def test_labels_in_two_spellings_are_one(write):
    """As pandas writes the integers of one file and not of another."""
    header = ("text", "label")
    folder = write(
        train_tsv=tsv(header, ("a", "0"), ("b", "1.0"), ("c", "0.0")),
        dev_tsv=tsv(header, ("d", "1")),
    )
    found = custom.data_set(folder)
    assert found.labels == ("0", "1")
    examples = [("a", "0"), ("b", "1"), ("c", "0")]
    assert read(found, "train", folder) == examples
    assert read(found, "dev", folder) == [("d", "1")]


def test_labels_that_are_given_keep_their_order(write):
    folder = write(train_tsv=tsv(("text", "label"), *ROWS))
    found = custom.data_set(folder, labels=["pos", "neg"])
    assert found.labels == ("pos", "neg")
    assert found.positive_label == "neg"
    with pytest.raises(InputError, match=r"'pos', 'x'\. Received: 'neg'.*:3$"):
        read(custom.data_set(folder, labels=["pos", "x"]), "train", folder)


def test_a_label_of_the_development_set_must_be_known(write):
    rows = ("text", "label"), ("x", "other")
    folder = write(train_tsv=tsv(("text", "label"), *ROWS), dev_tsv=tsv(*rows))
    found = custom.data_set(folder)
    with pytest.raises(InputError, match=r"'neg', 'pos'\. .*'other' at .*:2$"):
        read(found, "dev", folder)


def test_an_empty_label_in_training_is_told(write):
    folder = write(train_tsv=tsv(("text", "label"), *ROWS, ("x", "")))
    with pytest.raises(InputError, match=r"a label on every row.*:5$"):
        custom.data_set(folder)


def test_prediction_needs_no_labels_in_files(write):
    folder = write(test_tsv=tsv(("text",), ("a",)))
    found = custom.data_set(folder, labels=["a", "b"])
    assert read(found, "test", folder) == [("a", None)]
    message = r"train\.tsv or .*: test\.tsv; if no training .* --labels$"
    with pytest.raises(InputError, match=message):
        custom.data_set(folder)
    with pytest.raises(InputError, match="--label_column or --labels"):
        custom.data_set(folder, label_column=None)


def test_labels_are_looked_for_nowhere_without_a_folder(write, monkeypatch):
    """Not even where the program was started."""
    monkeypatch.chdir(write(train_tsv=tsv(("text", "label"), *ROWS)))
    with pytest.raises(InputError, match=r"--labels, or --data_dir with a tr"):
        custom.data_set("")
    assert custom.data_set("", labels=["a", "b"]).labels == ("a", "b")
    assert custom.data_set("", problem="regression").labels == ()


def test_names_of_labels_do_not_make_up_for_a_missing_folder(tmp_path):
    with pytest.raises(InputError, match=r"Received: no such folder$"):
        custom.data_set(str(tmp_path / "no"))


def test_a_missing_column_is_told_with_the_header(write):
    folder = write(train_tsv=tsv(("text", "label"), *ROWS))
    message = r"'labels'\. Received: 'text', 'label' .*; did you mean 'label'"
    with pytest.raises(InputError, match=message):
        custom.data_set(folder, label_column="labels")


def test_numbers(write):
    folder = write(train_tsv=tsv(("text", "label"), ("a", "0.5"), ("b", "3")))
    found = custom.data_set(folder, problem="regression")
    assert found.labels == ()
    assert read(found, "train", folder) == [("a", 0.5), ("b", 3.0)]
    with pytest.raises(InputError, match="no --labels"):
        custom.data_set(folder, problem="regression", labels=["a"])


@pytest.mark.parametrize(
    "text",
    [
        tsv(("text", "label"), ("x", "b; a"), ("y", ""), ("z", "c")),
        '{"text": "x", "label": ["b", "a"]}\n'
        '{"text": "y", "label": []}\n{"text": "z", "label": "c"}\n',
    ],
)
def test_several_labels_in_one_column(write, text):
    name = "train_jsonl" if text.startswith("{") else "train_tsv"
    folder = write(**{name: text})
    found = custom.data_set(folder, problem="multi_label", label_separator=";")
    assert found.labels == ("a", "b", "c")
    expected = [("x", ("b", "a")), ("y", ()), ("z", ("c",))]
    assert read(found, "train", folder) == expected


def test_an_empty_separator_is_told(write):
    folder = write(train_tsv=tsv(("text", "label"), *ROWS))
    with pytest.raises(InputError, match=r"--label_separator.*Received: ''"):
        custom.data_set(folder, problem="multi_label", label_separator="")
    found = custom.data_set(folder, label_separator="")
    assert found.labels == ("neg", "pos")  # Nothing is to be separated.


def test_several_labels_in_columns(write):
    header = ("toxic", "text", "rude")
    folder = write(
        train_tsv=tsv(header, ("1", "x", "0"), ("0", "y", "0")),
        dev_tsv=tsv(header[::-1], ("1", "x", "0")),
        test_tsv=tsv(("text",), ("x",)),
    )
    options = {"problem": "multi_label", "label_column": "toxic, rude"}
    found = custom.data_set(folder, **options)
    assert found.labels == ("toxic", "rude")
    assert read(found, "train", folder) == [("x", ("toxic",)), ("y", ())]
    assert read(found, "dev", folder) == [("x", ("rude",))]
    assert read(found, "test", folder) == [("x", None)]
    found = custom.data_set(folder, **options, labels=["rude", "toxic"])
    assert found.labels == ("rude", "toxic")
    assert read(found, "dev", folder) == [("x", ("rude",))]
    with pytest.raises(InputError, match=r"'rude', 'kind'\. .*'toxic', 'rude'"):
        custom.data_set(folder, **options, labels=["rude", "kind"])


def test_numbered_columns_of_labels_take_the_names_given(write):
    folder = write(train_tsv=tsv(("x", "1", "0"), ("y", "0", "1")))
    options = {
        "problem": "multi_label",
        "text_a_column": "0",
        "label_column": "1,2",
        "has_header": False,
    }
    found = custom.data_set(folder, **options, labels=["a", "b"])
    assert read(found, "train", folder) == [("x", ("a",)), ("y", ("b",))]
    assert custom.data_set(folder, **options).labels == ("1", "2")
    with pytest.raises(InputError, match="a column for each of the labels"):
        custom.data_set(folder, **options, labels=["a"])


@pytest.mark.parametrize("problem", ["single_label", "multi_label"])
@pytest.mark.parametrize("labels", [["a"], ["a", "a"], ["a", "b", "a"]])
def test_labels_that_are_none_are_told(write, problem, labels):
    message = f"2 or more different --labels. Received: {str(labels)[1:-1]}$"
    with pytest.raises(InputError, match=message):
        custom.data_set(write(), problem=problem, labels=labels)


@pytest.mark.parametrize("problem", ["single_label", "multi_label"])
def test_one_label_in_the_whole_file_is_told(write, problem):
    folder = write(train_tsv=tsv(("text", "label"), ("a", "x"), ("b", "x")))
    message = r"2 or more .* 'label' of .*train\.tsv. Received: 'x' alone"
    with pytest.raises(InputError, match=message):
        custom.data_set(folder, problem=problem)


def test_no_label_in_the_whole_file_is_told(write):
    folder = write(train_tsv=tsv(("text", "label"), ("a", ""), ("b", "")))
    message = r"2 or more .* 'label' of .*train\.tsv. Received: none"
    with pytest.raises(InputError, match=message):
        custom.data_set(folder, problem="multi_label")


@pytest.mark.parametrize("problem", ["single_label", "multi_label"])
@pytest.mark.parametrize("text", ["", "\n", "text\tlabel\n"])
def test_a_file_without_rows_is_told(write, problem, text):
    folder = write(train_tsv=text)
    with pytest.raises(InputError, match=r"in .*train\.tsv\. .*: no row"):
        custom.data_set(folder, problem=problem)


def test_unknown_problems_are_told(write):
    message = r"single_label, multi_label, regression\. Received: 'ranking'"
    with pytest.raises(InputError, match=message):
        custom.data_set(write(), problem="ranking")


@pytest.mark.parametrize(
    ("problem", "labels"),
    [
        ("single_label", "ab"),
        ("single_label", "abc"),
        ("multi_label", "ab"),
        ("regression", ""),
    ],
)
def test_metrics_are_known(write, problem, labels):
    found = custom.data_set(write(), problem=problem, labels=list(labels))
    assert set(found.metrics) <= metrics.METRICS.keys()
    assert found.problem == problem


def test_a_wrong_column_of_labels_is_suspected(write, monkeypatch):
    from absl import logging

    told = []
    monkeypatch.setattr(logging, "warning", lambda m, *a: told.append(m % a))
    rows = [(f"text {n}", f"label {n}") for n in range(97)]
    folder = write(train_tsv=tsv(("text", "label"), *rows))
    custom.data_set(folder)
    assert "97 different labels in 97 rows: is 'label'" in told[0]


def test_malformed_rows_can_be_left_out(write):
    rows = [("text", "label"), *ROWS, ("torn",)]
    folder = write(train_tsv=tsv(*rows))
    with pytest.raises(InputError, match=r"2 columns.*--skip_malformed_rows"):
        custom.data_set(folder)
    found = custom.data_set(folder, skip_malformed=True)
    assert read(found, "train", folder) == ROWS
