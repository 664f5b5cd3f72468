"""Small files of every sentence task, in their official layouts.

Not a test. The words of an example determine its label, and examples have many
lengths.
"""

import random

TELLING = ["good", "bad", "odd", "dull"]
FILLERS = [f"{a}{b}" for a in "bdgkmst" for b in "aeou"]
VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *TELLING, *FILLERS]
COUNTS = {"train": 12, "dev": 7, "test": 5}
MOST_WORDS = 17

BINARY = ("0", "1")
ENTAILMENT = ("entailment", "not_entailment")
INFERENCE = ("contradiction", "entailment", "neutral")
SCORES = ("0.000", "1.600", "5.000")

# Headers and rows; a bar is a tab. The label, if any, is the last column.
PAIR = "{n}|{a}|{b}"
MNLI = (
    "index|promptID|pairID|genre|sentence1_binary_parse|"
    "sentence2_binary_parse|sentence1_parse|sentence2_parse|"
    "sentence1|sentence2",
    "{n}|p|q|g|(|(|(|(|{a}|{b}",
)
STSB = (
    "index|genre|filename|year|old_index|source1|source2|sentence1|sentence2",
    "{n}|m|f|y|1|n|n|{a}|{b}",
)
KORSTS = (
    "genre|filename|year|id|score|sentence1|sentence2",
    "m|f|y|{n}|{label}|{a}|{b}",
)
XNLI = (
    "language|gold_label|sentence1_binary_parse|sentence2_binary_parse|"
    "sentence1_parse|sentence2_parse|sentence1|sentence2|promptID|pairID|"
    "genre|label1|label2|label3|label4|label5|sentence1_tokenized|"
    "sentence2_tokenized|match",
    "zh|{label}|||||{a}|{b}|1|1|g|n|n|n|n|n|{a}|{b}|True",
)
MSR = (
    "Quality|#1 ID|#2 ID|#1 String|#2 String",
    "{label}|{n}0|{n}1|{a}|{b}",
)
SWAG = (
    ",video-id,fold-ind,startphrase,sent1,sent2,gold-source,"
    "ending0,ending1,ending2,ending3",
    '{n},v,9,"{a}, {b}","{a}",{b},gold,{0},{1},{2},{3}',
)
COLA = (None, "gj04|{label}||{a}")
SST = ("sentence|label", "{a} |{label}")
NSMC = ("id|document|label", "{n}|{a}|{label}")
TEXT = ("text|label", "{a}|{label}")
COMMAS = ("name,label,first,second", '"{n}",{label},"{a}, {b}",{b}')
JSON = (None, '{{"text": "{a}", "label": "{label}"}}')


def _labelled(layout, names="label", separator="|", label="{label}"):
    header, row = layout
    return header + separator + names, row + separator + label


def _files(labelled, test=None, names=("train.tsv", "dev.tsv", "test.tsv")):
    """Returns the layout of each file; without `test`, tests have labels."""
    train, dev, last = names
    return {train: labelled, dev: labelled, last: test or labelled}


_INDEXED = ("index|sentence", "{n}|{a}")
_MSR_TEST = (
    "index|#1 ID|#2 ID|#1 String|#2 String",
    "{n}|{n}0|{n}1|{a}|{b}",
)
_QNLI = ("index|question|sentence", PAIR)
_PAIRS = ("index|sentence1|sentence2", PAIR)
_QQP = ("id|qid1|qid2|question1|question2", "{n}|1|2|{a}|{b}")
_DEV_LABELS = "label1|label2|label3|label4|label5|gold_label"
_MNLI_DEV = _labelled(MNLI, _DEV_LABELS, label="neutral|x|y|z|x|{label}")
_MNLI = {
    "train.tsv": _labelled(MNLI, "label1|gold_label", label="x|{label}"),
    "dev_matched.tsv": _MNLI_DEV,
    "dev_mismatched.tsv": _MNLI_DEV,
    "test_matched.tsv": MNLI,
    "test_mismatched.tsv": MNLI,
    "diagnostic.tsv": _PAIRS,
}
_XNLI = {
    "multinli/multinli.train.zh.tsv": (
        "premise|hypo|label",
        "{a}|{b}|{label}",
    ),
    "xnli.dev.tsv": XNLI,
    "xnli.test.tsv": XNLI,
}
_KORSTS_NAMES = ("sts-train.tsv", "sts-dev.tsv", "sts-test.tsv")
_SWAG = _labelled(SWAG, separator=",")
_SWAG_NAMES = ("train.csv", "val.csv", "test.csv")
_CSV_NAMES = ("train.csv", "valid.csv", "test.csv")
_JSON_NAMES = ("train.jsonl", "dev.jsonl", "test.jsonl")

# Task -> its labels, and each file's header and row.
LAYOUTS = {
    "cola": (BINARY, _files(COLA, _INDEXED)),
    "sst-2": (BINARY, _files(SST, _INDEXED)),
    "mrpc": (BINARY, _files(MSR, _MSR_TEST)),
    "sts-b": (SCORES, _files(_labelled(STSB, "score"), STSB)),
    "korsts": (SCORES, _files(KORSTS, names=_KORSTS_NAMES)),
    "qqp": (
        BINARY,
        _files(
            _labelled(_QQP, "is_duplicate"), ("id|question1|question2", PAIR)
        ),
    ),
    "mnli": (INFERENCE, _MNLI),
    "qnli": (ENTAILMENT, _files(_labelled(_QNLI), _QNLI)),
    "rte": (ENTAILMENT, _files(_labelled(_PAIRS), _PAIRS)),
    "wnli": (BINARY, _files(_labelled(_PAIRS), _PAIRS)),
    "xnli": (("contradictory", "entailment", "neutral"), _XNLI),
    "swag": (tuple("0123"), _files(_SWAG, SWAG, _SWAG_NAMES)),
    "nsmc": (BINARY, {"ratings_train.txt": NSMC, "ratings_test.txt": NSMC}),
    "tsv": (("no", "some", "yes"), _files(TEXT)),
    "csv": (("no", "yes"), _files(COMMAS, names=_CSV_NAMES)),
    "jsonl": (("no", "yes"), _files(JSON, names=_JSON_NAMES)),
    "multi_label": (("", "rude", "rude,toxic"), _files(TEXT)),
    "regression": (("-1", "0.25", "1e1"), _files(TEXT)),
}


def write(folder, task):
    """Writes all files of a task; returns the folder."""
    labels, layouts = LAYOUTS[task]
    for name, layout in layouts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text_of(name, labels, layout), encoding="utf-8")
    return folder


def text_of(name, labels, layout):
    """Returns the text of a file, as a function of its name."""
    header, row = layout
    count = next((n for s, n in COUNTS.items() if s in name), COUNTS["dev"])
    count = COUNTS["dev"] if "ids" in name else count
    rows = [
        row.format(*endings(n), n=n, label=label, a=a, b=b)
        for n, label, a, b in examples(name, labels, count)
    ]
    text = "".join(f"{line}\n" for line in [header, *rows] if line is not None)
    is_tabbed = name.endswith((".tsv", ".txt"))
    return text.replace("|", "\t") if is_tabbed else text


def examples(name, labels, count):
    """Yields number, label and two texts; the first determines the label."""
    draw = random.Random(name)
    for n in range(count):
        number = n % len(labels)
        words = draw.choices(FILLERS, k=draw.randrange(MOST_WORDS))
        words.insert(draw.randrange(len(words) + 1), TELLING[number])
        yield n, labels[number], " ".join(words), draw.choice(FILLERS)


def endings(n):
    """Returns four endings of example n of SWAG; the correct one is "good"."""
    words = ["bad", "odd", "dull", FILLERS[0]]
    return ["good" if number == n % 4 else words[number] for number in range(4)]
