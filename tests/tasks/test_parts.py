import dataclasses
import gzip
import json

import pytest

from bert_tf.data.tables import Layout
from bert_tf.errors import InputError
from bert_tf.tasks.datasets import DataSet, Plan, Source, named, only
from bert_tf.tasks.examples import Target

LAYOUT = Layout.of("text_a label", has_header=False)
PAIRED = Layout.of("text_a text_b label", has_header=False)
KEYED = Layout.of("key text_a label", has_header=False)
TARGET = Target("single_label", ("0", "1"))


def data_set(**splits):
    return DataSet("toy", TARGET, ("accuracy",), **splits)


@pytest.fixture
def warnings(monkeypatch):
    from absl import logging

    told = []
    monkeypatch.setattr(logging, "warning", lambda m, *a: told.append(m % a))
    return told


@pytest.fixture
def folder(tmp_path):
    def folder(**texts):
        for name, text in texts.items():
            (tmp_path / f"{name}.tsv").write_text(text)
        return str(tmp_path)

    return folder


@pytest.mark.parametrize("split", ["train", "dev", "test"])
def test_two_texts_or_one(split):
    """Any file tells it: AX has a test set alone."""
    assert not data_set().is_pair
    assert not data_set(**{split: only(Source("a.tsv", LAYOUT))}).is_pair
    pairs = Plan(named(("a.tsv", "b.tsv"), PAIRED))
    assert data_set(**{split: (Plan(()), pairs)}).is_pair


def test_its_own_model_answers_unless_another_is_named():
    assert data_set().model_of == "toy"
    assert DataSet("ax", TARGET, (), model_of="mnli").model_of == "mnli"
    assert data_set().problem == "single_label"
    assert data_set().labels == ("0", "1")


def test_labels_in_the_order_of_a_model(folder, warnings):
    toy = data_set(train=only(Source("a.tsv", LAYOUT)))
    other = toy.with_labels(("1", "0"))
    assert (toy.labels, other.labels) == (("0", "1"), ("1", "0"))
    assert toy.positive_label == other.positive_label == "1"
    [part] = other.split("train", folder(a="x\t0\n"))
    assert part.reading["target"]["labels"] == ["1", "0"]
    assert not warnings


def test_labels_by_other_names_are_taken_by_their_number(warnings):
    other = data_set().with_labels(("LABEL_0", "LABEL_1"))
    assert (other.labels, other.positive_label) == (("0", "1"), "1")
    assert warnings == [
        "The model's labels LABEL_0, LABEL_1 are taken for 0, 1, in this order"
    ]


def test_labels_of_another_task_need_consent(warnings):
    """A model of MRPC is none of RTE, though it has two classes as well."""
    rte = dataclasses.replace(
        data_set(), target=Target("single_label", ("entailment", "not_ent"))
    )
    message = (
        r"labels are 0, 1; toy has entailment, not_ent\. .*--allow_label_m"
    )
    with pytest.raises(InputError, match=message):
        rte.with_labels(("0", "1"))
    # Training replaces the head.
    assert rte.with_labels(("0", "1"), is_trained=True) == rte
    assert not warnings
    assert rte.with_labels(("0", "1"), allow_mapping=True) == rte
    assert "0, 1 are taken for entailment, not_ent, in this" in warnings[0]


def test_labels_are_known_in_other_spellings():
    target = Target("single_label", ("contra", "entail", "neutral"))
    mnli = dataclasses.replace(data_set(), target=target)
    found = mnli.with_labels(("NEUTRAL", "Entail", "contra"))
    assert found.labels == ("neutral", "entail", "contra")
    assert data_set().with_labels(("1.0", "0.0")).labels == ("1", "0")
    named = dataclasses.replace(data_set(), published_labels=("bad", "good"))
    assert named.with_labels(("GOOD", "BAD")).labels == ("1", "0")
    cased = dataclasses.replace(data_set(), target=Target("x", ("a", "A")))
    assert cased.with_labels(("A", "a")).labels == ("A", "a")
    with pytest.raises(InputError, match="labels are a, a1; toy has a, A"):
        cased.with_labels(("a", "a1"))


@pytest.mark.parametrize("known", [(), ("a", "b", "c"), ("0", "1", "1")])
def test_another_number_of_labels_is_no_order(warnings, known):
    assert data_set().with_labels(known) == data_set()
    assert not warnings


def test_numbers_have_no_positive_label():
    numbers = DataSet("toy", Target("regression"), ("pearson",))
    assert numbers.positive_label is None
    assert numbers.with_labels(()) == numbers


def test_the_first_file_that_there_is(folder):
    toy = data_set(dev=only(*named(("a.tsv", "b.tsv", "c.tsv"), LAYOUT)))
    path = folder(b="x\t0\n", c="y\t1\n")
    [part] = toy.split("dev", path)
    assert part.files == (f"{path}/b.tsv",)
    assert [example.text_a for example in part.read()] == ["x"]


def test_a_compressed_file_does_as_well(tmp_path):
    toy = data_set(dev=only(*named(("a.tsv", "b.tsv"), LAYOUT)))
    for name in ("b.tsv", "b.tsv.gz", "a.tsv.gz", "a.tsv"):
        packed = gzip.compress(b"x\t0\n") if ".gz" in name else b"x\t0\n"
        (tmp_path / name).write_bytes(packed)
        [part] = toy.split("dev", str(tmp_path))
        # What is named first goes before, and then what is not compressed.
        assert part.files == (
            str(tmp_path / name.replace("b.tsv.gz", "b.tsv")),
        )
        assert [example.text_a for example in part.read()] == ["x"]


def test_a_part_tells_how_it_is_read(folder):
    toy = data_set(train=only(Source("a.tsv", LAYOUT)))
    [part] = toy.split("train", folder(a="x\t0\n"))
    assert json.loads(json.dumps(part.reading)) == part.reading
    assert part.reading["layout"]["label"] == 1
    assert part.reading["target"]["labels"] == ["0", "1"]


def test_labels_may_be_missing_in_the_test_set_only(folder):
    plans = only(Source("a.tsv", LAYOUT))
    toy = data_set(train=plans, dev=plans, test=plans)
    path = folder(a="x\t\n")
    for split in ("train", "dev"):
        with pytest.raises(InputError, match="a label on every row"):
            toy.split(split, path)[0].read()
    assert toy.split("test", path)[0].read()[0].label is None


def test_parts_that_may_be_missing(folder):
    plans = (
        Plan((Source("a.tsv", LAYOUT),), submission="A.tsv"),
        Plan((Source("b.tsv", LAYOUT),), "_b", optional=True),
    )
    toy = data_set(test=plans)
    [part] = toy.split("test", folder(a="x\t0\n"))
    assert (part.suffix, part.submission) == ("", "A.tsv")
    _, part = toy.split("test", folder(b="y\t0\n"))
    assert (part.suffix, part.submission) == ("_b", None)


def test_missing_files_are_told_with_what_there_is(folder, tmp_path):
    toy = data_set(dev=only(*named(("a.tsv", "b.tsv"), LAYOUT)))
    message = r"a\.tsv or b\.tsv in .*, the development set of toy\. "
    with pytest.raises(InputError, match=f"{message}Received: an empty folder"):
        toy.split("dev", str(tmp_path))
    path = folder(c="", d="")
    with pytest.raises(
        InputError, match=rf"{message}Received: c\.tsv, d\.tsv$"
    ):
        toy.split("dev", path)
    with pytest.raises(InputError, match=f"{message}Received: no such folder"):
        toy.split("dev", str(tmp_path / "no"))


def test_the_folder_of_a_missing_file_is_shown(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "train.fr.tsv").touch()
    toy = data_set(train=only(Source("sub/train.ko.tsv", LAYOUT)))
    with pytest.raises(InputError, match=r"Expected train\.ko.*: train\.fr"):
        toy.split("train", str(tmp_path))


def test_a_crowded_folder_is_not_shown_whole(tmp_path):
    for number in range(37):
        (tmp_path / f"{number:02}.tsv").touch()
    with pytest.raises(InputError, match=r"29\.tsv and 7 more$"):
        data_set(dev=only(Source("a.tsv", LAYOUT))).split("dev", str(tmp_path))


def test_splits_that_there_are_not(tmp_path):
    ax = DataSet("ax", TARGET, (), model_of="mnli")
    with pytest.raises(InputError, match="'train'; a model of mnli"):
        ax.split("train", str(tmp_path))
    with pytest.raises(ValueError, match="'validation'"):
        ax.split("validation", str(tmp_path))


def test_rows_that_are_listed_and_the_others(folder):
    raw = {
        split: only(
            Source("a.tsv", KEYED, listing="list.tsv", is_listed=is_listed)
        )
        for split, is_listed in (("train", False), ("dev", True))
    }
    path = folder(a="1\tx\t0\n2\ty\t1\n3\tz\t1\n")
    with pytest.raises(InputError, match=r"list\.tsv beside .*a\.tsv"):
        data_set(**raw).split("dev", path)
    folder(list="3\n1\n")
    [train] = data_set(**raw).split("train", path)
    [dev] = data_set(**raw).split("dev", path)
    assert [example.text_a for example in train.read()] == ["y"]
    assert [example.text_a for example in dev.read()] == ["x", "z"]
    assert train.files == dev.files == (f"{path}/a.tsv", f"{path}/list.tsv")
    assert train.reading != dev.reading


def test_languages(tmp_path):
    layout = Layout.of("language text_a label", has_header=False)
    (tmp_path / "train.fr.tsv").write_text("x\t0\n")
    (tmp_path / "dev.tsv").write_text("en\tx\t0\nko\ty\t0\n")
    toy = data_set(
        train=only(Source("train.{train_language}.tsv", LAYOUT)),
        dev=only(Source("dev.tsv", layout)),
        language="ko",
        train_language="fr",
    )
    [train] = toy.split("train", str(tmp_path))
    assert train.read()[0].text_a == "x"
    [dev] = toy.split("dev", str(tmp_path))
    assert [example.text_a for example in dev.read()] == ["y"]
    assert dev.reading["language"] == "ko"


@pytest.mark.parametrize("where", ["source", "data_set"])
def test_malformed_rows_can_be_left_out(folder, where):
    source = Source("a.tsv", LAYOUT, skip_malformed=where == "source")
    toy = data_set(train=only(source), skip_malformed=where == "data_set")
    [part] = toy.split("train", folder(a="x\t0\ny\n"))
    assert len(part.read()) == 1


def test_files_elsewhere(tmp_path, folder):
    path = folder(a="x\t0\n")
    for name in (f"{path}/a.tsv", f"file://{path}/a.tsv"):
        toy = data_set(train=only(Source(name, LAYOUT)))
        [part] = toy.split("train", str(tmp_path / "no"))
        assert len(part.read()) == 1
