"""Custom data sets."""

import gzip
import json

import pytest

from bert_tf import metrics
from bert_tf.errors import InputError
from bert_tf.tasks import custom

ROWS = [("good film", "pos"), ("bad film", "neg"), ("a film", "pos")]
HEADER = ("text", "label")


@pytest.fixture
def write(tmp_path):
    """Writes files named stem_extension and returns their folder."""

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


@pytest.mark.parametrize("extension", ["tsv", "csv", "jsonl", "csv.gz"])
def test_formats(tmp_path, extension):
    objects = [{"text": t, "label": x} for t, x in ROWS]
    text = {
        "tsv": tsv(HEADER, *ROWS),
        "csv": "label,text\n" + "".join(f'{x},"{t}"\n' for t, x in ROWS),
        "jsonl": "".join(json.dumps(row) + "\n" for row in objects),
    }[extension.removesuffix(".gz")].encode()
    content = gzip.compress(text) if extension.endswith(".gz") else text
    (tmp_path / f"train.{extension}").write_bytes(content)
    found = custom.data_set(str(tmp_path))
    assert (found.name, found.model_of) == ("custom", "custom")
    assert found.labels == ("neg", "pos")
    assert found.with_labels(("pos", "neg")).positive_label == "pos"
    assert not found.is_pair
    assert read(found, "train", str(tmp_path)) == ROWS


def test_pairs_ids_and_other_file_names(write, tmp_path):
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


def test_a_path_relative_to_the_working_directory(write, monkeypatch, tmp_path):
    folder = write(mine_tsv=tsv(HEADER, *ROWS))
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
    with pytest.raises(InputError, match=r"no header to find .* 'text'"):
        custom.data_set(folder, label_column="1", has_header=False)


def test_labels_of_the_training_file(write):
    rows = [("a", "2"), ("b", "10"), ("c", "1")]
    folder = write(train_tsv=tsv(HEADER, *rows))
    assert custom.data_set(folder).labels == ("1", "2", "10")
    # pandas writes the integers of one file as floats, but not of another.
    folder = write(
        train_tsv=tsv(HEADER, ("a", "0"), ("b", "1.0"), ("c", "0.0")),
        dev_tsv=tsv(HEADER, ("d", "1")),
    )
    found = custom.data_set(folder)
    assert found.labels == ("0", "1")
    examples = [("a", "0"), ("b", "1"), ("c", "0")]
    assert read(found, "train", folder) == examples
    assert read(found, "dev", folder) == [("d", "1")]


def test_given_labels_keep_their_order(write):
    folder = write(
        train_tsv=tsv(HEADER, *ROWS), dev_tsv=tsv(HEADER, ("x", "other"))
    )
    found = custom.data_set(folder, labels=["pos", "neg"])
    assert found.labels == ("pos", "neg")
    assert found.positive_label == "neg"
    with pytest.raises(InputError, match=r":3: unknown .* 'pos' and 'x'\.$"):
        read(custom.data_set(folder, labels=["pos", "x"]), "train", folder)
    with pytest.raises(InputError, match=r":2: .*'other'.*'neg' and 'pos'\.$"):
        read(custom.data_set(folder), "dev", folder)


def test_prediction_needs_no_labels_in_files(write):
    folder = write(test_tsv=tsv(("text",), ("a",)))
    found = custom.data_set(folder, labels=["a", "b"])
    assert read(found, "test", folder) == [("a", None)]
    message = r"no train\.tsv, .* has test\.tsv\. Without .* --labels\.$"
    with pytest.raises(InputError, match=message):
        custom.data_set(folder)
    with pytest.raises(InputError, match="--label_column or --labels"):
        custom.data_set(folder, label_column=None)
    with pytest.raises(InputError, match=r"there is no such folder\.$"):
        custom.data_set(f"{folder}/no")


def test_without_a_folder_no_labels_are_looked_for(write, monkeypatch):
    """Not even in the working directory."""
    monkeypatch.chdir(write(train_tsv=tsv(HEADER, *ROWS)))
    with pytest.raises(InputError, match=r"--labels, or --data_dir with a tr"):
        custom.data_set("")
    assert custom.data_set("", labels=["a", "b"]).labels == ("a", "b")
    assert custom.data_set("", problem="regression").labels == ()


def test_regression(write):
    folder = write(train_tsv=tsv(HEADER, ("a", "0.5"), ("b", "3")))
    found = custom.data_set(folder, problem="regression")
    assert found.labels == ()
    assert read(found, "train", folder) == [("a", 0.5), ("b", 3.0)]
    with pytest.raises(InputError, match="--labels must be left out"):
        custom.data_set(folder, problem="regression", labels=["a"])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("train_tsv", tsv(HEADER, ("x", "b; a"), ("y", ""), ("z", "c"))),
        (
            "train_jsonl",
            '{"text": "x", "label": ["b", "a"]}\n'
            '{"text": "y", "label": []}\n{"text": "z", "label": "c"}\n',
        ),
    ],
)
def test_several_labels_in_one_column(write, name, text):
    folder = write(**{name: text})
    found = custom.data_set(folder, problem="multi_label", label_separator=";")
    assert found.labels == ("a", "b", "c")
    expected = [("x", ("b", "a")), ("y", ()), ("z", ("c",))]
    assert read(found, "train", folder) == expected


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
    message = r"each label \(rude and kind\); got \['toxic', 'rude'\]"
    with pytest.raises(InputError, match=message):
        custom.data_set(folder, **options, labels=["rude", "kind"])


def test_numbered_label_columns_take_the_given_names(write):
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
    with pytest.raises(InputError, match="--label_column must be a column for"):
        custom.data_set(folder, **options, labels=["a"])


@pytest.mark.parametrize("problem", ["single_label", "multi_label"])
@pytest.mark.parametrize("labels", [["a"], ["a", "a"], ["a", "b", "a"]])
def test_invalid_labels_option(problem, labels):
    with pytest.raises(InputError, match=r"--labels must be .* two different"):
        custom.data_set("", problem=problem, labels=labels)


@pytest.mark.parametrize(
    ("problem", "text", "message"),
    [
        ("single_label", "text\tlabel\na\tx\nb\tx\n", "'label', found 'x'"),
        ("multi_label", "text\tlabel\na\tx\nb\tx\n", "'label', found 'x'"),
        ("multi_label", "text\tlabel\na\t\nb\t\n", "'label', found none"),
        ("single_label", "text\tlabel\na\tx\nb\t\n", ":3: no label"),
        ("single_label", "", "no row"),
        ("multi_label", "text\tlabel\n", "no row"),
        ("single_label", "text\tlabels\na\tx\n", r"Did you mean 'labels'\?"),
    ],
)
def test_training_files_without_usable_labels(write, problem, text, message):
    folder = write(train_tsv=text)
    with pytest.raises(InputError, match=rf"train\.tsv.*{message}"):
        custom.data_set(folder, problem=problem)


def test_invalid_options(write):
    message = r"single_label, multi_label or regression; got 'ranking'"
    with pytest.raises(InputError, match=message):
        custom.data_set("", problem="ranking")
    folder = write(train_tsv=tsv(HEADER, *ROWS))
    with pytest.raises(InputError, match=r"--label_separator .*; got ''"):
        custom.data_set(folder, problem="multi_label", label_separator="")
    # A single label needs no separator.
    found = custom.data_set(folder, label_separator="")
    assert found.labels == ("neg", "pos")


@pytest.mark.parametrize(
    ("problem", "labels", "names"),
    [
        ("single_label", "ab", ("accuracy", "f1")),
        ("single_label", "abc", ("accuracy", "macro_f1")),
        ("multi_label", "ab", ("micro_f1", "macro_f1", "exact_match")),
        ("regression", "", ("pearson", "spearman")),
    ],
)
def test_metrics(problem, labels, names):
    found = custom.data_set("", problem=problem, labels=list(labels))
    assert found.metrics == names
    assert set(names) <= metrics.METRICS.keys()
    assert found.problem == problem


@pytest.mark.parametrize(("count", "warns"), [(97, True), (50, False)])
def test_many_labels_are_suspicious(write, monkeypatch, count, warns):
    from absl import logging

    logged = []
    monkeypatch.setattr(logging, "warning", lambda m, *a: logged.append(m % a))
    rows = [(f"text {n}", f"label {n}") for n in range(count)]
    custom.data_set(write(train_tsv=tsv(HEADER, *rows)))
    message = f"{count} different labels in {count} rows. Is 'label' the"
    assert (message in "".join(logged)) is warns


def test_malformed_rows_can_be_skipped(write):
    folder = write(train_tsv=tsv(HEADER, *ROWS, ("torn",)))
    with pytest.raises(InputError, match=r"2 columns.*--skip_malformed_rows"):
        custom.data_set(folder)
    found = custom.data_set(folder, skip_malformed=True)
    assert read(found, "train", folder) == ROWS
