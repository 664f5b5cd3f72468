"""Data sets: finding their files, their labels, and the official layouts."""

import collections
import dataclasses
import gzip
import shutil

import pytest

from bert_tf import metrics
from bert_tf.errors import InputError
from bert_tf.tasks import datasets
from bert_tf.tasks.datasets import DataSet, Source
from bert_tf.tasks.examples import PROBLEMS, Target

COLUMNS = "text_a label"
TARGET = Target(labels=("0", "1"))

MNLI = (
    "index promptID pairID genre sentence1_binary_parse "
    "sentence2_binary_parse sentence1_parse sentence2_parse sentence1 sentence2"
)
STSB = "index genre filename year old_index source1 source2 sentence1 sentence2"
XNLI = (
    "language gold_label sentence1_binary_parse sentence2_binary_parse "
    "sentence1_parse sentence2_parse sentence1 sentence2 promptID pairID genre "
    "label1 label2 label3 label4 label5 sentence1_tokenized "
    "sentence2_tokenized match"
)
SWAG = (
    ",video-id,fold-ind,startphrase,sent1,sent2,gold-source,"
    "ending0,ending1,ending2,ending3"
)


def table(header, *rows):
    """A TSV; `header` between spaces, or None, and rows between bars."""
    lines = [header.replace(" ", "\t")] if header else []
    lines += [row.replace("|", "\t") for row in rows]
    return "".join(f"{line}\n" for line in lines)


@pytest.fixture
def write(tmp_path):
    def write(files):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text.encode())
        return str(tmp_path)

    return write


def read(name, split, folder, **options):
    parts = datasets.find(name, **options).split(split, folder)
    return [
        [(e.id, e.text_a, e.text_b, e.label) for e in part.read()]
        for part in parts
    ]


# Task -> split -> file, its text, and the examples in it.
OFFICIAL = {
    "cola": {
        "train": (
            "train.tsv",
            table(None, "gj04|1||Our friends.", "gj04|0|*|They drank it."),
            [
                ("0", "Our friends.", None, "1"),
                ("1", "They drank it.", None, "0"),
            ],
        ),
        "dev": (
            "dev.tsv",
            table(None, "gj04|1||The sailors."),
            [("0", "The sailors.", None, "1")],
        ),
        "test": (
            "test.tsv",
            table("index sentence", "0|Bill whistled."),
            [("0", "Bill whistled.", None, None)],
        ),
    },
    "sst-2": {
        "train": (
            "train.tsv",
            table("sentence label", "hide new |0", '" quite a " film |1'),
            [
                ("0", "hide new ", None, "0"),
                ("1", '" quite a " film ', None, "1"),
            ],
        ),
        "dev": (
            "dev.tsv",
            table("sentence label", "a joy |1"),
            [("0", "a joy ", None, "1")],
        ),
        "test": (
            "test.tsv",
            table("index sentence", "0|uneasy ."),
            [("0", "uneasy .", None, None)],
        ),
    },
    "mrpc": {
        "train": (
            "train.tsv",
            "\ufeff" + table("Quality #1_ID #2_ID #1 #2", '1|70|73|He "s|"x'),
            [("0", 'He "s', '"x', "1")],
        ),
        "dev": (
            "dev.tsv",
            "\ufeff" + table("Quality #1_ID #2_ID #1 #2", "0|70|71|a|b"),
            [("0", "a", "b", "0")],
        ),
        "test": (
            "test.tsv",
            table("index #1_ID #2_ID #1 #2", "17|70|71|a|b"),
            [("17", "a", "b", None)],
        ),
    },
    "sts-b": {
        "train": (
            "train.tsv",
            table(f"{STSB} score", "3|m|f|y|1|n|n|A plane.|It.|3.800"),
            [("3", "A plane.", "It.", 3.8)],
        ),
        "dev": (
            "dev.tsv",
            table(f"{STSB} score", "0|m|f|y|1|n|n|a|b|0.000"),
            [("0", "a", "b", 0.0)],
        ),
        "test": (
            "test.tsv",
            table(STSB, "5|m|f|y|1|n|n|a|b"),
            [("5", "a", "b", None)],
        ),
    },
    "qqp": {
        "train": (
            "train.tsv",
            table(
                "id qid1 qid2 question1 question2 is_duplicate",
                "133273|1|2|How?|Why?|0",
                "402555|3|4|torn by a line",
                "break?|So?|1",
                "360472|5|6|Who?||1",
                "9|7|8|What?|Which?|1",
            ),
            [
                ("133273", "How?", "Why?", "0"),
                ("360472", "Who?", "", "1"),
                ("9", "What?", "Which?", "1"),
            ],
        ),
        "dev": (
            "dev.tsv",
            table(
                "id qid1 qid2 question1 question2 is_duplicate", "7|1|2|a|b|1"
            ),
            [("7", "a", "b", "1")],
        ),
        "test": (
            "test.tsv",
            table("id question1 question2", "0|a|b"),
            [("0", "a", "b", None)],
        ),
    },
    "mnli": {
        "train": (
            "train.tsv",
            table(
                f"{MNLI} label1 gold_label",
                "0|p|q|g|(|(|(|(|a|b|neutral|neutral",
                "1|p|q|g|(|(|(|(|c|d|neutral|-",
                "2|p|q|g|(|(|(|(|e|f|entailment|entailment",
            ),
            [("0", "a", "b", "neutral"), ("2", "e", "f", "entailment")],
        ),
        "dev": (
            "dev_matched.tsv",
            table(
                f"{MNLI} label1 label2 label3 label4 label5 gold_label",
                "0|p|q|g|(|(|(|(|a|b|neutral|x|y|z|x|contradiction",
            ),
            [("0", "a", "b", "contradiction")],
        ),
        "test": (
            "test_matched.tsv",
            table(MNLI, "9|p|q|g|(|(|(|(|a|b"),
            [("9", "a", "b", None)],
        ),
    },
    "qnli": {
        "train": (
            "train.tsv",
            table("index question sentence label", "0|Q?|S.|entailment"),
            [("0", "Q?", "S.", "entailment")],
        ),
        "dev": (
            "dev.tsv",
            table("index question sentence label", "4|Q?|S.|not_entailment"),
            [("4", "Q?", "S.", "not_entailment")],
        ),
        "test": (
            "test.tsv",
            table("index question sentence", "5|Q?|S."),
            [("5", "Q?", "S.", None)],
        ),
    },
    "rte": {
        "train": (
            "train.tsv",
            table("index sentence1 sentence2 label", "0|a|b|not_entailment"),
            [("0", "a", "b", "not_entailment")],
        ),
        "dev": (
            "dev.tsv",
            table("index sentence1 sentence2 label", "1|a|b|entailment"),
            [("1", "a", "b", "entailment")],
        ),
        "test": (
            "test.tsv",
            table("index sentence1 sentence2", "2|a|b"),
            [("2", "a", "b", None)],
        ),
    },
    "wnli": {
        "train": (
            "train.tsv",
            table("index sentence1 sentence2 label", "0|a|b|1"),
            [("0", "a", "b", "1")],
        ),
        "dev": (
            "dev.tsv",
            table("index sentence1 sentence2 label", "1|a|b|0"),
            [("1", "a", "b", "0")],
        ),
        "test": (
            "test.tsv",
            table("index sentence1 sentence2", "2|a|b"),
            [("2", "a", "b", None)],
        ),
    },
    "ax": {
        "test": (
            "diagnostic/diagnostic.tsv",
            table("index sentence1 sentence2", "0|a|b"),
            [("0", "a", "b", None)],
        ),
    },
    "xnli": {
        "train": (
            "multinli/multinli.train.zh.tsv",
            table("premise hypo label", "a|b|contradictory", "c|d|neutral"),
            [("0", "a", "b", "contradiction"), ("1", "c", "d", "neutral")],
        ),
        "dev": (
            "xnli.dev.tsv",
            table(
                XNLI,
                "bg|neutral|||||a|b|1|1|face|n|n|n|n|n|a|b|True",
                "zh|entailment|||||c|d|1|1|face|n|n|n|n|n|c|d|True",
            ),
            [("0", "c", "d", "entailment")],
        ),
        "test": (
            "xnli.test.tsv",
            table(XNLI, "zh|neutral|||||c|d|1|1|face|n|n|n|n|n|c|d|True"),
            [("0", "c", "d", "neutral")],
        ),
    },
    "swag": {
        "train": (
            "train.csv",
            f'{SWAG},label\n4,a_1,9,x She,"x, y",She,gold,goes.,"a, b",c,d,2\n',
            [("4", "x, y", None, "2")],
        ),
        "dev": (
            "val.csv",
            f"{SWAG},label\n0,a_1,9,x She,x,She,gen,a,b,c,d,0\n",
            [("0", "x", None, "0")],
        ),
        "test": (
            "test.csv",
            f"{SWAG}\n7,a_1,9,x She,x,She,gen,a,b,c,d\n",
            [("7", "x", None, None)],
        ),
    },
    "nsmc": {
        "train": (
            "ratings_train.txt",
            table("id document label", '9976970|아 "더빙..|0', "1||1"),
            [("9976970", '아 "더빙..', None, "0"), ("1", "", None, "1")],
        ),
        "dev": (
            "ratings_dev.txt",
            table("id document label", "2|굳 ㅋ|1"),
            [("2", "굳 ㅋ", None, "1")],
        ),
        "test": (
            "ratings_test.txt",
            table("id document label", "3|a|0", "4|b|"),
            [("3", "a", None, "0"), ("4", "b", None, None)],
        ),
    },
}
EVERY_FILE = [
    (task, split) for task, splits in OFFICIAL.items() for split in splits
]


# Files, splits and labels.


def source(*files, columns=COLUMNS, **options):
    return (Source(files, columns, has_header=False, **options),)


def toy(**options):
    return DataSet("toy", TARGET, ("accuracy",), **options)


def texts(part):
    return [example.text_a for example in part.read()]


@pytest.mark.parametrize("split", ["train", "dev", "test"])
def test_pairs_are_known_from_any_file(split):
    assert not toy().is_pair
    assert not toy(**{split: source("a.tsv")}).is_pair
    pairs = source("b.tsv", columns="text_a text_b label")
    assert toy(**{split: source("a.tsv") + pairs}).is_pair


def test_labels_in_the_order_of_a_model(write, warnings):
    data_set = toy(train=source("a.tsv"))
    other = data_set.with_labels(("1", "0"))
    assert (data_set.labels, other.labels) == (("0", "1"), ("1", "0"))
    assert data_set.positive_label == other.positive_label == "1"
    [part] = other.split("train", write({"a.tsv": "x\t0\n"}))
    assert [example.label for example in part.read()] == ["0"]
    assert not warnings


@pytest.mark.parametrize(
    ("ours", "published", "known", "found"),
    [
        (("0", "1"), (), ("1.0", "0.0"), ("1", "0")),
        (("0", "1"), ("bad", "good"), ("GOOD", "BAD"), ("1", "0")),
        (("a", "b", "c"), (), ("C", "a", "B"), ("c", "a", "b")),
        (("a", "A"), (), ("A", "a"), ("A", "a")),
        # Another number of labels says nothing about the order.
        (("0", "1"), (), (), ("0", "1")),
        (("0", "1"), (), ("a", "b", "c"), ("0", "1")),
        (("0", "1"), (), ("0", "1", "1"), ("0", "1")),
    ],
)
def test_labels_in_other_spellings(warnings, ours, published, known, found):
    data_set = dataclasses.replace(
        toy(published_labels=published), target=Target(labels=ours)
    )
    assert data_set.with_labels(known).labels == found
    assert not warnings


def test_classes_without_names_are_assigned_in_order(warnings):
    other = toy().with_labels(("LABEL_0", "LABEL_1"))
    assert (other.labels, other.positive_label) == (("0", "1"), "1")
    assert warnings == [
        "The model's labels LABEL_0, LABEL_1 are assigned to 0, 1, in this "
        "order"
    ]


def test_labels_of_another_task_must_be_allowed(warnings):
    """A model for MRPC is not one for RTE, although both have two classes."""
    rte = DataSet("rte", Target(labels=("entailment", "not_ent")), ())
    message = (
        r"labels are 0, 1; rte has entailment, not_ent\. .*--allow_label_m"
    )
    with pytest.raises(InputError, match=message):
        rte.with_labels(("0", "1"))
    with pytest.raises(InputError, match="labels are a, a1; toy has a, A"):
        DataSet("toy", Target(labels=("a", "A")), ()).with_labels(("a", "a1"))
    # Training replaces the head.
    assert rte.with_labels(("0", "1"), is_trained=True) == rte
    assert not warnings
    assert rte.with_labels(("0", "1"), allow_mapping=True) == rte
    assert "0, 1 are assigned to entailment, not_ent, in this" in warnings[0]


def test_regression_has_no_positive_label():
    numbers = DataSet("toy", Target("regression"), ("pearson",))
    assert numbers.positive_label is None
    assert numbers.with_labels(()) == numbers


def test_the_first_existing_file_is_read(tmp_path):
    data_set = toy(dev=source("a.tsv", "b.tsv") + source("c.tsv"))
    for name in ("c.tsv", "b.tsv.gz", "b.tsv", "a.tsv.gz", "a.tsv"):
        content = b"x\t0\n"
        packed = gzip.compress(content) if ".gz" in name else content
        (tmp_path / name).write_bytes(packed)
        [part] = data_set.split("dev", str(tmp_path))
        assert part.files == (str(tmp_path / name),)
        assert texts(part) == ["x"]


def test_only_a_test_set_may_lack_labels(write):
    data_set = toy(
        train=source("a.tsv"), dev=source("a.tsv"), test=source("a.tsv")
    )
    folder = write({"a.tsv": "x\t\n"})
    for split in ("train", "dev"):
        with pytest.raises(InputError, match="no label"):
            data_set.split(split, folder)[0].read()
    assert data_set.split("test", folder)[0].read()[0].label is None


def test_optional_parts(write):
    data_set = toy(
        test=source("a.tsv", submission="A.tsv")
        + source("b.tsv", suffix="_b", is_optional=True)
    )
    [part] = data_set.split("test", write({"a.tsv": "x\t0\n"}))
    assert (part.suffix, part.submission) == ("", "A.tsv")
    _, part = data_set.split("test", write({"b.tsv": "y\t0\n"}))
    assert (part.suffix, part.submission) == ("_b", None)


def test_missing_files(write, tmp_path):
    data_set = toy(dev=source("a.tsv", "b.tsv"))
    message = r"no a\.tsv or b\.tsv, the development set of toy; "
    with pytest.raises(InputError, match=f"{message}the folder is empty"):
        data_set.split("dev", str(tmp_path))
    with pytest.raises(InputError, match=f"{message}there is no such folder"):
        data_set.split("dev", str(tmp_path / "no"))
    folder = write({"c.tsv": "", "d.tsv": ""})
    message += r"the folder has c\.tsv and d\.tsv\.$"
    with pytest.raises(InputError, match=f"^{folder}: {message}"):
        data_set.split("dev", folder)
    write({"sub/train.fr.tsv": ""})
    data_set = toy(train=source("sub/train.ko.tsv"))
    message = r"/sub: no train\.ko\.tsv, .* has train\.fr\.tsv\.$"
    with pytest.raises(InputError, match=message):
        data_set.split("train", folder)
    write({f"{number:02}.tsv": "" for number in range(37)})
    with pytest.raises(InputError, match=r"29\.tsv, \.\.\. \(40 in all\)"):
        toy(train=source("a.tsv")).split("train", folder)
    with pytest.raises(InputError, match=r"no dev.* A model of toy predicts"):
        data_set.split("dev", folder)


def test_listed_rows_and_the_others(write):
    options = {"columns": "key text_a label", "listing": "list.tsv"}
    data_set = toy(
        train=source("a.tsv", **options),
        dev=source("a.tsv", **options, is_listed=True),
    )
    folder = write({"a.tsv": "1\tx\t0\n2\ty\t1\n3\tz\t1\n"})
    with pytest.raises(InputError, match=r"no list\.tsv, .* rows of a\.tsv"):
        data_set.split("dev", folder)
    write({"list.tsv": "3\n1\n"})
    [train] = data_set.split("train", folder)
    [dev] = data_set.split("dev", folder)
    assert texts(train) == ["y"]
    assert texts(dev) == ["x", "z"]
    assert train.files == dev.files == (f"{folder}/a.tsv", f"{folder}/list.tsv")


@pytest.mark.parametrize("where", ["source", "data_set"])
def test_malformed_rows_can_be_skipped(write, where):
    train = source("a.tsv", skip_malformed=where == "source")
    data_set = toy(train=train, skip_malformed=where == "data_set")
    [part] = data_set.split("train", write({"a.tsv": "x\t0\ny\n"}))
    assert texts(part) == ["x"]


def test_files_elsewhere(write, tmp_path):
    folder = write({"a.tsv": "x\t0\n"})
    for name in (f"{folder}/a.tsv", f"file://{folder}/a.tsv"):
        data_set = toy(train=source(name))
        [part] = data_set.split("train", str(tmp_path / "no"))
        assert texts(part) == ["x"]


# The official files.


@pytest.mark.parametrize(("task", "split"), EVERY_FILE)
def test_official_files(write, task, split):
    name, text, examples = OFFICIAL[task][split]
    folder = write({name: text})
    assert read(task, split, folder) == [examples]
    # Another editor may save them like this.
    other = "\ufeff" + text.lstrip("\ufeff").replace("\n", "\r\n\r\n")
    write({name: other})
    assert read(task, split, folder) == [examples]
    write({name: text + "cut\n"})
    if (task, split) == ("qqp", "train"):
        assert read(task, split, folder) == [examples]
        return
    line = text.count("\n") + 1
    message = rf"{name}:{line}: .* columns.*found 1\..*--skip_malformed"
    with pytest.raises(InputError, match=message):
        read(task, split, folder)


@pytest.mark.parametrize("task", sorted({t for t, _ in EVERY_FILE} - {"ax"}))
def test_unknown_labels(write, task):
    name, text, examples = OFFICIAL[task]["train"]
    label = {"sts-b": "3.800"}.get(task, examples[-1][-1])
    head, _, tail = text.rpartition(label)
    folder = write({name: f"{head}good{tail}"})
    with pytest.raises(InputError, match=rf"{name}:\d+: .* 'good'"):
        read(task, "train", folder)


def test_the_table():
    assert set(OFFICIAL) == set(datasets.NAMES)
    assert len(datasets.TABLE) == len(datasets.NAMES)
    for data_set in datasets.TABLE:
        assert data_set.problem in PROBLEMS
        assert data_set.metrics
        assert set(data_set.metrics) <= metrics.METRICS.keys()
        assert data_set.model_of in datasets.NAMES
    # AX has MNLI's pairs; the endings of SWAG are not second texts.
    single = {d.name for d in datasets.TABLE if not d.is_pair}
    assert single == {"cola", "sst-2", "swag", "nsmc"}
    names = {source.submission for d in datasets.TABLE for source in d.test}
    assert names - {None} == {
        *("CoLA.tsv", "SST-2.tsv", "MRPC.tsv", "STS-B.tsv", "QQP.tsv"),
        *("MNLI-m.tsv", "MNLI-mm.tsv", "QNLI.tsv", "RTE.tsv", "WNLI.tsv"),
        "AX.tsv",
    }


def test_the_labels_are_in_the_order_of_the_original():
    assert datasets.find("cola").labels == ("0", "1")
    assert datasets.find("mrpc").labels == ("0", "1")
    for name in ("qnli", "rte"):
        names = ("entailment", "not_entailment")
        assert datasets.find(name).labels == names
    names = ("contradiction", "entailment", "neutral")
    assert all(datasets.find(n).labels == names for n in ("mnli", "xnli", "ax"))


@pytest.mark.parametrize(
    ("name", "found"),
    [("MRPC", "mrpc"), ("sst2", "sst-2"), ("STSB", "sts-b"), ("CoLA", "cola")],
)
def test_names_in_other_spellings(name, found):
    assert datasets.find(name).name == found
    assert datasets.find(name).model_of == found


def test_unknown_names():
    message = r"of cola, sst-2.*nsmc or custom; got 'mrcp'\. .* 'mrpc'\?$"
    with pytest.raises(InputError, match=message):
        datasets.find("mrcp")


def test_mnli_has_two_sets(write):
    _, dev, _ = OFFICIAL["mnli"]["dev"]
    _, test, _ = OFFICIAL["mnli"]["test"]
    folder = write(
        {
            "dev_matched.tsv": dev,
            "dev_mismatched.tsv": dev.replace("contradiction", "neutral"),
            "test_matched.tsv": test,
            "test_mismatched.tsv": test,
        }
    )
    mnli = datasets.find("mnli")
    for split, names in (
        ("dev", [None, None]),
        ("test", ["MNLI-m.tsv", "MNLI-mm.tsv"]),
    ):
        parts = mnli.split(split, folder)
        assert [part.suffix for part in parts] == ["", "_mismatched"]
        assert [part.submission for part in parts] == names
    [[(*_, first)], [(*_, second)]] = read("mnli", "dev", folder)
    assert (first, second) == ("contradiction", "neutral")


def test_test_sets_of_one_model_write_different_files():
    suffixes = collections.defaultdict(list)
    for data_set in datasets.TABLE:
        suffixes[data_set.model_of] += dict.fromkeys(
            source.suffix for source in data_set.test
        )
    for found in suffixes.values():
        assert len(found) == len(set(found))
    assert suffixes["mnli"] == ["", "_mismatched", "_ax"]


def test_ax_has_only_a_test_set(write):
    folder = write({"AX.tsv": OFFICIAL["ax"]["test"][1]})
    [part] = datasets.find("ax").split("test", folder)
    assert (part.suffix, part.submission) == ("_ax", "AX.tsv")
    assert part.read()
    with pytest.raises(InputError, match=r"ax has no dev.* A model of mnli"):
        read("ax", "dev", folder)


def test_mrpc_in_the_files_of_microsoft(write):
    header = "Quality #1_ID #2_ID #1_String #2_String"
    folder = write(
        {
            "msr_paraphrase_train.txt": "\ufeff"
            + table(header, "1|3|4|a|b", "0|5|6|c|d", "1|4|3|e|f"),
            "msr_paraphrase_test.txt": "\ufeff" + table(header, "1|7|8|g|h"),
        }
    )
    with pytest.raises(InputError, match=r"no dev_ids\.tsv, which lists"):
        read("mrpc", "dev", folder)
    write({"dev_ids.tsv": table(None, "5|6")})
    assert read("mrpc", "train", folder) == [
        [("0", "a", "b", "1"), ("1", "e", "f", "1")]
    ]
    assert read("mrpc", "dev", folder) == [[("0", "c", "d", "0")]]
    assert read("mrpc", "test", folder) == [[("0", "g", "h", "1")]]
    [part] = datasets.find("mrpc").split("test", folder)
    assert part.submission == "MRPC.tsv"
    # The files of GLUE's script take precedence.
    _, text, examples = OFFICIAL["mrpc"]["dev"]
    write({"dev.tsv": text})
    assert read("mrpc", "dev", folder) == [examples]


def test_xnli_in_any_language(write):
    files = {name: text for name, text, _ in OFFICIAL["xnli"].values()}
    train = files["multinli/multinli.train.zh.tsv"]
    folder = write({**files, "multinli/multinli.train.en.tsv": train})
    assert read("xnli", "dev", folder, language="bg") == [
        [("0", "a", "b", "neutral")]
    ]
    with pytest.raises(InputError, match=r"'en'; the .* 'bg' and 'zh'\.$"):
        read("xnli", "dev", folder, language="en")
    assert read("xnli", "train", folder, language="en")
    options = {"language": "bg", "train_language": "en"}
    assert read("xnli", "train", folder, **options)
    message = r"train\.bg\.tsv .* has multinli\.train\.en\.tsv and .*zh\.tsv"
    with pytest.raises(InputError, match=message):
        read("xnli", "train", folder, language="bg")


def test_swag_has_four_endings(write):
    name, text, _ = OFFICIAL["swag"]["train"]
    [part] = datasets.find("swag").split("train", write({name: text}))
    [example] = part.read()
    assert example.choices == ("She goes.", "She a, b", "She c", "She d")


def test_nsmc_without_a_development_set(write):
    folder = write({"ratings_test.txt": table("id document label", "3|a|0")})
    assert read("nsmc", "dev", folder) == [[("3", "a", None, "0")]]
    write({"ratings_valid.txt": table("id document label", "4|b|1")})
    assert read("nsmc", "dev", folder) == [[("4", "b", None, "1")]]


def test_malformed_official_rows_can_be_skipped(write):
    folder = write({"dev.tsv": table("x y", "a|1", "b", "c|0")})
    assert len(read("sst-2", "dev", folder, skip_malformed=True)[0]) == 2


@pytest.mark.parametrize(
    "name", ["cola", "sst-2", "mrpc", "qqp", "wnli", "nsmc"]
)
def test_published_models_name_classes_that_files_number(name):
    """transformers writes acceptable, positive, equivalent, duplicate."""
    data_set = datasets.find(name)
    reversed_labels = data_set.published_labels[::-1]
    assert data_set.with_labels(reversed_labels).labels == ("1", "0")


# Real files.


def sizes(folder, name, *splits):
    return [
        len(part.read())
        for split in splits
        for part in datasets.find(name).split(split, str(folder))
    ]


def test_real_files(shared_data):
    glue = shared_data / "glue"
    every = ("train", "dev", "test")
    assert sizes(glue / "MRPC", "mrpc", *every) == [3668, 408, 1725]
    assert sizes(glue / "SST-2", "sst-2", *every) == [67349, 872, 1821]
    assert sizes(glue / "STS-B", "sts-b", "train", "dev") == [5749, 1500]
    assert sizes(glue / "MNLI", "mnli", "dev") == [9815]
    mini = shared_data / "nsmc" / "mini"
    assert sizes(mini, "nsmc", *every) == [5000, 100, 10]


def test_real_mrpc_in_both_forms(shared_data, tmp_path):
    folder = shared_data / "glue" / "MRPC"
    for name in (
        "msr_paraphrase_train.txt",
        "msr_paraphrase_test.txt",
        "dev_ids.tsv",
    ):
        shutil.copy(folder / name, tmp_path)
    for split in ("train", "dev"):
        raw = read("mrpc", split, str(tmp_path))
        assert raw == read("mrpc", split, str(folder))
    [raw] = read("mrpc", "test", str(tmp_path))
    [tsv] = read("mrpc", "test", str(folder))
    assert [row[:3] for row in raw] == [row[:3] for row in tsv]


def test_real_swag(shared_data, tmp_path):
    shutil.copy(shared_data / "swag" / "val_first500.csv", tmp_path / "val.csv")
    [part] = datasets.find("swag").split("dev", str(tmp_path))
    examples = part.read()
    assert len(examples) == 500
    assert {example.label for example in examples} == set("0123")
    assert all(len(example.choices) == 4 for example in examples)
