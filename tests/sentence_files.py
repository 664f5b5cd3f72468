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


def _glue(layout, label="label", test=None):
    """Returns train.tsv and dev.tsv with labels and test.tsv without."""
    labelled = _labelled(layout, label)
    return {
        "train.tsv": labelled,
        "dev.tsv": labelled,
        "test.tsv": test or layout,
    }


_DEV_LABELS = "label1|label2|label3|label4|label5|gold_label"
_MNLI_DEV = _labelled(MNLI, _DEV_LABELS, label="neutral|x|y|z|x|{label}")
_SWAG_LABELLED = _labelled(SWAG, separator=",")

# Task -> its labels, and each file's header and row.
LAYOUTS = {
    "cola": (
        BINARY,
        {
            "train.tsv": COLA,
            "dev.tsv": COLA,
            "test.tsv": ("index|sentence", "{n}|{a}"),
        },
    ),
    "sst-2": (
        BINARY,
        {
            "train.tsv": SST,
            "dev.tsv": SST,
            "test.tsv": ("index|sentence", "{n}|{a}"),
        },
    ),
    "mrpc": (
        BINARY,
        {
            "train.tsv": MSR,
            "dev.tsv": MSR,
            "test.tsv": (
                "index|#1 ID|#2 ID|#1 String|#2 String",
                "{n}|{n}0|{n}1|{a}|{b}",
            ),
        },
    ),
    "sts-b": (("0.000", "1.600", "5.000"), _glue(STSB, "score")),
    "korsts": (
        ("0.000", "1.600", "5.000"),
        dict.fromkeys(("sts-train.tsv", "sts-dev.tsv", "sts-test.tsv"), KORSTS),
    ),
    "qqp": (
        BINARY,
        _glue(
            ("id|qid1|qid2|question1|question2", "{n}|1|2|{a}|{b}"),
            "is_duplicate",
            ("id|question1|question2", PAIR),
        ),
    ),
    "mnli": (
        INFERENCE,
        {
            "train.tsv": _labelled(
                MNLI, "label1|gold_label", label="x|{label}"
            ),
            "dev_matched.tsv": _MNLI_DEV,
            "dev_mismatched.tsv": _MNLI_DEV,
            "test_matched.tsv": MNLI,
            "test_mismatched.tsv": MNLI,
            "diagnostic.tsv": ("index|sentence1|sentence2", PAIR),
        },
    ),
    "qnli": (ENTAILMENT, _glue(("index|question|sentence", PAIR))),
    "rte": (ENTAILMENT, _glue(("index|sentence1|sentence2", PAIR))),
    "wnli": (BINARY, _glue(("index|sentence1|sentence2", PAIR))),
    "xnli": (
        ("contradictory", "entailment", "neutral"),
        {
            "multinli/multinli.train.zh.tsv": (
                "premise|hypo|label",
                "{a}|{b}|{label}",
            ),
            "xnli.dev.tsv": XNLI,
            "xnli.test.tsv": XNLI,
        },
    ),
    "swag": (
        tuple("0123"),
        {
            "train.csv": _SWAG_LABELLED,
            "val.csv": _SWAG_LABELLED,
            "test.csv": SWAG,
        },
    ),
    "nsmc": (BINARY, {"ratings_train.txt": NSMC, "ratings_test.txt": NSMC}),
    "tsv": (
        ("no", "some", "yes"),
        {"train.tsv": TEXT, "dev.tsv": TEXT, "test.tsv": TEXT},
    ),
    "csv": (
        ("no", "yes"),
        {"train.csv": COMMAS, "valid.csv": COMMAS, "test.csv": COMMAS},
    ),
    "jsonl": (
        ("no", "yes"),
        {"train.jsonl": JSON, "dev.jsonl": JSON, "test.jsonl": JSON},
    ),
    "multi_label": (
        ("", "rude", "rude,toxic"),
        {"train.tsv": TEXT, "dev.tsv": TEXT, "test.tsv": TEXT},
    ),
    "regression": (
        ("-1", "0.25", "1e1"),
        {"train.tsv": TEXT, "dev.tsv": TEXT, "test.tsv": TEXT},
    ),
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
