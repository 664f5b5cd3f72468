"""Data sets: finding their files, their labels, and the official layouts."""

import gzip
import os

import pytest
import sentence_files

from bert_tf.errors import InputError
from bert_tf.tasks import datasets
from bert_tf.tasks.datasets import DataSet, Source
from bert_tf.tasks.examples import Target

TARGET = Target(labels=("0", "1"))


@pytest.fixture
def write(tmp_path):
    """Returns a function that writes files and returns their folder."""

    def write(files):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text.encode())
        return str(tmp_path)

    return write


def source(*files, columns="text_a label", **options):
    return (Source(files, columns, has_header=False, **options),)


def toy(**options):
    return DataSet("toy", TARGET, ("accuracy",), **options)


def texts(part):
    return [example.text_a for example in part.read()]


@pytest.mark.parametrize(
    ("ours", "published", "known", "found"),
    [
        (("0", "1"), (), ("1.0", "0.0"), ("1", "0")),
        (("0", "1"), ("bad", "good"), ("GOOD", "BAD"), ("1", "0")),
        (("a", "b", "c"), (), ("C", "a", "B"), ("c", "a", "b")),
        # The order is unknown if the number of labels differs.
        (("0", "1"), (), ("a", "b", "c"), ("0", "1")),
    ],
)
def test_labels_in_the_order_of_a_model(
    warnings, ours, published, known, found
):
    data_set = DataSet(
        "toy", Target(labels=ours), (), published_labels=published
    )
    other = data_set.with_labels(known)
    assert other.labels == found
    assert other.positive_label == data_set.positive_label == ours[-1]
    assert not warnings


def test_published_models_name_classes_that_files_number():
    for data_set in datasets.TABLE:
        if data_set.published_labels:
            reversed_labels = data_set.published_labels[::-1]
            assert data_set.with_labels(reversed_labels).labels == ("1", "0")


def test_labels_of_another_task(warnings):
    """A model for MRPC is not one for RTE, although both have two classes."""
    rte = datasets.find("rte")
    message = r"labels are 0, 1; rte has entailment, not_entailment"
    with pytest.raises(InputError, match=message):
        rte.with_labels(("0", "1"))
    # Training replaces the head.
    assert rte.with_labels(("0", "1"), is_trained=True) == rte
    assert not warnings
    assert rte.with_labels(("LABEL_0", "LABEL_1"), is_trained=True) == rte
    assert "LABEL_0, LABEL_1 are assigned to" in warnings.pop()


def test_the_first_existing_file_is_read(tmp_path):
    data_set = toy(dev=source("a.tsv", "b.tsv", "c.tsv"))
    for name in ("c.tsv", "b.tsv.gz", "b.tsv", "a.tsv.gz", "a.tsv"):
        content = b"x\t0\n"
        packed = gzip.compress(content) if ".gz" in name else content
        (tmp_path / name).write_bytes(packed)
        [part] = data_set.split("dev", str(tmp_path))
        assert part.path == str(tmp_path / name)
        assert texts(part) == ["x"]
    [part] = toy(dev=source(part.path)).split("dev", str(tmp_path / "no"))
    assert texts(part) == ["x"]


def test_missing_files(tmp_path):
    data_set = toy(train=source("train.ko.tsv"), dev=source("a.tsv", "b.tsv"))
    message = r"no a\.tsv or b\.tsv, the development set of toy\.$"
    with pytest.raises(InputError, match=f"^{tmp_path}: {message}"):
        data_set.split("dev", str(tmp_path))
    with pytest.raises(InputError, match=r"no test.* A model of toy"):
        data_set.split("test", str(tmp_path))


def as_text(example):
    """Returns the fields of an example; choices instead of a second text."""
    second = example.text_b or "~".join(example.choices)
    label = "" if example.label is None else str(example.label)
    return "|".join((example.id, example.text_a, second, label))


def read(task, split, folder, **options):
    """Returns the examples of each part as strings."""
    parts = datasets.find(task, **options).split(split, folder)
    return [[as_text(example) for example in part.read()] for part in parts]


@pytest.mark.parametrize(
    ("task", "split"),
    [
        (task, split)
        for task in datasets.NAMES
        for split in ("train", "dev", "test")
        if task != "ax" or split == "test"
    ],
)
def test_layouts_of_the_official_files(tmp_path, warnings, task, split):
    name = "mnli" if task == "ax" else task
    labels, _ = sentence_files.LAYOUTS[name]
    folder = sentence_files.write(tmp_path, name)
    data_set = datasets.find(task)
    for part in data_set.split(split, str(folder)):
        file = os.path.relpath(part.path, folder)
        found = part.read()
        assert len(found) >= 5
        expected = sentence_files.examples(file, labels, len(found))
        for example, (n, label, a, b) in zip(found, expected, strict=True):
            assert example.id == str(n)
            assert example.text_a.rstrip(" ") == a
            assert example.text_b == (b if data_set.is_pair else None)
            label = {"contradictory": "contradiction"}.get(label, label)
            if task in ("sts-b", "korsts"):
                label = float(label)
            is_shown = task in ("xnli", "nsmc", "korsts")
            is_hidden = split == "test" and not is_shown
            assert example.label == (None if is_hidden else label)
        assert not warnings
        if not part.source.has_header:
            continue
        # Without a header, the first example is skipped, as in the original.
        path = tmp_path / file
        path.write_text("".join(path.read_text().splitlines(True)[1:]))
        assert len(part.read()) == len(found) - 1
        [line] = warnings
        assert f"{path}:1: the header looks like an example with" in line
        warnings.clear()


MSR = "\ufeffQuality|#1_ID|#2_ID|#1|#2\n"


@pytest.mark.parametrize(
    ("task", "file", "text", "examples"),
    [
        (
            *("sst-2", "train.tsv"),
            'sentence|label\nhide new |0\n" quite a " film |1',
            ["0|hide new ||0", '1|" quite a " film ||1'],
        ),
        ("mrpc", "train.tsv", MSR + '1|70|73|He "s|"x', ['0|He "s|"x|1']),
        # Questions with line breaks are skipped.
        (
            *("qqp", "train.tsv"),
            "id|qid1|qid2|question1|question2|is_duplicate\n"
            "40|3|4|torn by a line\nbreak?|So?|1\n36|5|6|Who?||1",
            ["36|Who?||1"],
        ),
        (
            *("mnli", "train.tsv"),
            f"{11 * 'x|'}gold_label\n0|p|q|g|(|(|(|(|a|b|neutral|neutral\n"
            "1|p|q|g|(|(|(|(|c|d|neutral|-",
            ["0|a|b|neutral"],
        ),
        (
            *("swag", "train.csv"),
            f"{11 * 'x,'}label\n"
            '4,a_1,9,x She,"x, y",She,gold,goes.,"a, b",c,d,2',
            ["4|x, y|She goes.~She a, b~She c~She d|2"],
        ),
    ],
)
def test_peculiar_rows(write, task, file, text, examples):
    text = f"{text}\n".replace("|", "\t")
    assert read(task, "train", write({file: text})) == [examples]
    # Some editors save a file like this.
    text = "\ufeff" + text.lstrip("\ufeff").replace("\n", "\r\n\r\n")
    assert read(task, "train", write({file: text})) == [examples]


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        (("0", "1"), "cola mrpc sst-2 qqp wnli"),
        (("entailment", "not_entailment"), "qnli rte"),
        (("contradiction", "entailment", "neutral"), "mnli xnli ax"),
    ],
)
def test_the_labels_are_in_the_order_of_the_original(labels, names):
    assert {datasets.find(x).labels for x in names.split()} == {labels}


def test_names_of_tasks():
    names = {"MRPC": "mrpc", "sst2": "sst-2", "STSB": "sts-b"}
    for name, found in names.items():
        assert datasets.find(name).name == found
    message = r"of cola, sst-2.*nsmc or custom; got 'mrcp'\. .* 'mrpc'\?$"
    with pytest.raises(InputError, match=message):
        datasets.find("mrcp")


def test_mnli_may_lack_its_second_development_set(tmp_path):
    """tests/test_run_classifier_tasks.py has both, and the test sets."""
    folder = str(sentence_files.write(tmp_path, "mnli"))
    (tmp_path / "dev_mismatched.tsv").unlink()
    [part] = datasets.find("mnli").split("dev", folder)
    assert part.source.suffix == ""


def test_xnli_in_any_language(write):
    row = "bg\tneutral\t\t\t\t\ta\tb\n"
    files = {
        "multinli/multinli.train.en.tsv": "x\ty\tz\na\tb\tcontradictory\n",
        "xnli.dev.tsv": f"{row}{row}zh{row[2:]}",
    }
    folder = write(files)
    options = {"language": "bg", "train_language": "en"}
    assert read("xnli", "dev", folder, **options) == [["0|a|b|neutral"]]
    assert read("xnli", "train", folder, **options)
    with pytest.raises(InputError, match=r"'en'; the .* 'bg' and 'zh'\.$"):
        read("xnli", "dev", folder, language="en")


def test_nsmc_without_a_development_set(write):
    folder = write({"ratings_test.txt": "id\tdocument\tlabel\n3\ta\t0\n"})
    assert read("nsmc", "dev", folder) == [["3|a||0"]]
    write({"ratings_valid.txt": "id\tdocument\tlabel\n4\tb\t1\n"})
    assert read("nsmc", "dev", folder) == [["4|b||1"]]


@pytest.mark.parametrize(
    ("name", "folder", "counts"),
    [
        ("mrpc", "glue/MRPC", {"train": 3668, "dev": 408, "test": 1725}),
        ("sst-2", "glue/SST-2", {"train": 67349, "dev": 872, "test": 1821}),
        ("sts-b", "glue/STS-B", {"train": 5749, "dev": 1500}),
        ("mnli", "glue/MNLI", {"dev": 9815}),
        ("nsmc", "nsmc/mini", {"train": 5000, "dev": 100, "test": 10}),
    ],
)
def test_real_files(shared_data, name, folder, counts):
    data_set = datasets.find(name)
    for split, count in counts.items():
        [part] = data_set.split(split, str(shared_data / folder))
        assert len(part.read()) == count
