"""What text models refuse: each mistake has a message of one line."""

import functools

import keras
import numpy as np
import pytest
from keras import ops

import bert_tf
from bert_tf.errors import InputError
from bert_tf.text_models.inputs import Part, hold_out, plain_row, whole
from tests.checkpoints.small_models import VOCAB, refused
from tests.text_models import small_text_models
from tests.text_models.small_text_models import (
    CONFIG,
    TEXTS,
    TOKENIZER,
    answerer,
    classifier,
    embedder,
    filler,
    tagger,
)

pytestmark = pytest.mark.usefixtures("eagerly")
ON_TENSORFLOW = keras.backend.backend() == "tensorflow"
KINDS = {
    "classifier": classifier,
    "several": functools.partial(classifier, problem="multi_label"),
    "number": functools.partial(classifier, 1, problem="regression"),
    "embedder": embedder,
    "filler": filler,
    "answerer": answerer,
    "tagger": tagger,
}
PAIR, PAIRS = [("a", "b")], [("a", "b")] * 2
HUGE = 10**400
IN_A_LIST = "Texts or labels must be in a list, a column or a data set; got"
POSITIVE = "{} must be a positive integer; got {}"
SAMPLE_WEIGHTS = "sample_weight must be 1 numbers of at least 0, one for"
CLASS_WEIGHTS = "must be 'balanced' or a dict of numbers for bad or good"
MISSPELLED = "Did you mean 'good'?"
A_STRING = " must be a string, a pair"
A_LABEL_EACH = "number of labels must be 1, the number of texts; got 2"
MISSING = (None, np.float16("nan"))
A_TUPLE = r"alidation.data must .* a tuple \(x, y\) or \(x,"
CALLBACKS = r"callbacks must be a keras\.callbacks\.Callback, or a"
OUTSIDE = "max_seq_length must be from 3 to 19, the model's"


class Table:
    """A table of Hugging Face's `datasets`."""

    column_names = ("text", "label")

    def __len__(self):
        return 1


# For each kind of model: a method, its arguments, and the message.
REFUSED = {
    "classifier": [
        ("fit", (["a"],), "Labels are missing"),
        ("fit", ([], []), "There are no texts"),
        ("fit", (["a"], ["good", "bad"]), A_LABEL_EACH),
        ("fit", (["a"], ["goood"]), f"one of bad or good; .* {MISSPELLED}"),
        ("fit", (["a", "b"], [1.0, 0.5]), "example 1: .* bad or good; got 0.5"),
        *(
            ("fit", (["a"], y), IN_A_LIST)
            for y in ("good", {"a": 0.0}, {0.0}, iter([0]))
        ),
        *(
            ("fit", (["a", "b"], ["good", x]), "1: the label is missing")
            for x in MISSING
        ),
        ("predict", (["a", 3],), "Text 1 must be a string; "),
        ("predict", ([("a", "b"), "cd"],), "Some texts are pairs and others"),
        ("predict", (("a", "b", "c"),), "got 3 columns. Pass several texts as"),
        *(
            ("predict", {"x": ["a"], name: 0}, POSITIVE.format(name, 0))
            for name in ("batch_size", "steps")
        ),
        ("predict", {"x": ["a"], "callbacks": "x"}, CALLBACKS),
        ("compile", {"optimizer": None}, "must be an optimizer or its name"),
        ("compile", {"optimizer": "sgd", "learning_rate": 1}, "rate is for op"),
        ("compile", {"learning_rate": -1.0}, "a positive number; got -1.0"),
    ],
    "number": [
        ("fit", (["a", "b"], [0.5, MISSING[1]]), "1: the label is missing"),
        *(
            ("fit", (["a"], [x]), "0: the label must be a finite number; got")
            for x in (-np.inf, 1e39, "nan", HUGE)
        ),
    ],
    "several": [
        ("fit", (["a"], [[1]]), "must be names, or 0 or 1 for each of the 2"),
        ("fit", (["a"], [[0, 2]]), "names, or 0 or 1 for each of the 2"),
        ("fit", (["a"], ["good"]), "example 0 must be a list; got 'good'"),
    ],
    "embedder": [
        ("fit", (PAIRS, [0.5, 5]), "must be cosines, from -1 to 1; got 5"),
        *(
            ("fit", (PAIRS, scores), "The scores must be numbers; got")
            for scores in ([[1.0, 0.0], [0.0]], [0.0, HUGE])
        ),
        ("fit", (PAIRS, [0.5, None]), "pair 1: the score is missing"),
        ("fit", {"x": ["a"], "teacher": "x"}, "has no `teacher`"),
        ("fit", {"x": PAIRS, "class_weight": {0: 1}}, "needs texts or words"),
        ("fit", {"x": PAIRS, "validation_data": ([], None)}, "There are no te"),
        ("predict", (PAIR,), "Expected single texts; got pairs"),
        ("evaluate", (PAIR, [1.0, 0.0]), A_LABEL_EACH),
        ("compile", {"metrics": ["mse"]}, "own loss and scores. Leave out met"),
    ],
    "filler": [
        ("fit", (["a b"], [1]), "leave out `y`"),
        ("evaluate", {"x": ["a b"], "callbacks": [3]}, CALLBACKS),
        ("predict", ("[MASK]", 2.5), POSITIVE.format("top_k", 2.5)),
        ("predict", ([("[MASK]", "a")],), "single texts, not pairs"),
    ],
    "tagger": [
        ("fit", ([""], [[]]), "There are no texts with words"),
        ("fit", (["a b"], [["O"]]), "text 0 has 2 words, but 1 tags"),
        ("fit", (["a"], [None]), "The labels of text 0 must be a list; got"),
        *(
            ("fit", ([["a"]], [[tag]]), "one of the labels O, B-X and I-X")
            for tag in (np.nan, 3, "B-Z")
        ),
        # The keys of a dict are no texts, and a set has no order.
        *(
            ("predict", (x,), IN_A_LIST)
            for x in ({"text": ["a b"]}, {"a b", "c"}, None)
        ),
    ],
    "answerer": [
        *(
            ("fit", (PAIR, [answer]), f"question 0{message}")
            for answer, message in (
                *((x, A_STRING) for x in (3, ("b", "c"), {"text": ["b"]})),
                (None, ": the answer is missing"),
                ({"text": [], "answer_start": []}, " has no answer.* pass wit"),
                ("z", ": the text does not contain 'z'"),
                (("b", 1), ": at character 1 the text has '', not 'b'"),
                (("b", -1), ": at character -1 the text has"),
            )
        ),
        ("fit", ([], []), "There are no questions"),
        ("predict", (["a"],), "pass pairs of strings"),
    ],
}


@pytest.mark.parametrize("kind", REFUSED)
def test_calls(kind):
    model = KINDS[kind]()
    for method, arguments, message in REFUSED[kind]:
        options = arguments if isinstance(arguments, dict) else {}
        with refused(message):
            getattr(model, method)(*() if options else arguments, **options)


# Options of `fit` of a classifier.
OPTIONS = [
    ({"epochs": 0}, POSITIVE.format("epochs", "0")),
    ({"batch_size": "8"}, POSITIVE.format("batch_size", "'8'")),
    ({"seed": -1}, "seed must be an integer of at least 0; got -1"),
    ({"initial_epoch": 1.5}, "initial_epoch must be an integer of at least 0"),
    *(
        ({"sample_weight": x}, SAMPLE_WEIGHTS)
        for x in ([1.0, 2.0], [np.nan], [-1.0], 3, [HUGE])
    ),
    ({"shuffle": False}, "fit does not accept shuffle"),
    ({"steps_per_epoch": 3}, "steps_per_epoch is for a data set"),
    ({"epoch": 3}, "fit has no option 'epoch'. Did you mean 'epochs'?"),
    *(
        ({"class_weight": x}, CLASS_WEIGHTS)
        for x in (
            *({"good": x} for x in (None, -1.0, HUGE)),
            *({2: 1.0}, {"good": 0.0, "bad": 0.0}, "equal"),
        )
    ),
    ({"class_weight": {"god": 2}}, f"got {{'god': 2}}. {MISSPELLED}"),
    ({"callbacks": [3]}, CALLBACKS),
    ({"validation_split": 2}, "validation_split must be at least 0 and below"),
    ({"temperature": 2.0}, "`temperature` has no effect without `teacher`"),
    *(
        ({"validation_data": x}, A_TUPLE)
        for x in (["a"], (["a"],), (["a"], [0], None, None))
    ),
    *(
        ({"validation_data": (["a"], [0]), name: x}, f"{name} must be a posi")
        for name, x in (
            *(("validation_freq", x) for x in ("2", [0], None)),
            ("validation_batch_size", -1),
            ("validation_steps", 1.5),
        )
    ),
]


def test_options_are_checked_before_the_training():
    model = classifier()
    before = [ops.convert_to_numpy(x) for x in model.trainable_variables]
    for options, message in OPTIONS:
        with refused(message):
            model.fit(["a"], ["good"], **options)
    for old, new in zip(before, model.trainable_variables, strict=True):
        np.testing.assert_array_equal(old, ops.convert_to_numpy(new))


# What is called, its options, and the message.
MADE = [
    (classifier, {"max_seq_length": 20}, OUTSIDE),
    (classifier, {"problem": "ranking"}, "problem must be one of single_label"),
    (classifier, {"is_pair": "false"}, "is_pair must be one of True or False"),
    (embedder, {"pooling": "sum"}, "pooling must be one of pooled, cls, mean"),
    (answerer, {"with_negative": "false"}, "with_negative must be one of True"),
    (answerer, {"max_query_length": 17}, "^`max_seq_length` must .*gth=17`, "),
    (answerer, {"doc_stride": 0}, POSITIVE.format("doc_stride", 0)),
    (lambda: bert_tf.TextEmbedder("x", TOKENIZER), {}, "model must be a Bert"),
    (
        *(lambda: bert_tf.TextEmbedder(bert_tf.BertModel(CONFIG), "x"), {}),
        "tokenizer must be a FullTokenizer or a BertTokenizer",
    ),
    # Python takes "false" for true.
    (
        functools.partial(bert_tf.FullTokenizer, [*VOCAB]),
        *({"do_lower_case": "false"}, "do_lower_case must be one of True or"),
    ),
]


def test_options_of_models():
    for make, options, message in MADE:
        with refused(message):
            make(**options)
    bert_tf.FullTokenizer([*VOCAB], do_lower_case=np.True_)
    model = tagger()
    model.max_seq_length = 20
    with refused(OUTSIDE):
        model.predict("a")


def test_options_of_from_pretrained(tmp_path):
    model, load = bert_tf.BertModel(CONFIG), bert_tf.TextClassifier
    model.save_pretrained(tmp_path / "alone")
    model.save_pretrained(tmp_path / "saved", tokenizer=TOKENIZER)
    load, path = load.from_pretrained, tmp_path / "saved"
    with refused("'max_seq_lenght'. Did you mean 'max_seq_length'"):
        load(path, max_seq_lenght=9)
    with refused("num_labels must be 2, the number of labels; got 1"):
        load(path, problem="regression", labels=["bad", "good"])
    with refused("there is no vocab.txt beside the checkpoint. Add it"):
        bert_tf.TextEmbedder.from_pretrained(tmp_path / "alone")
    embedder().save(tmp_path / "model.keras")
    with refused("use keras.models.load_model"):
        bert_tf.TextEmbedder.from_pretrained(tmp_path / "model.keras")


def test_a_text_model_is_not_called_on_texts():
    model = classifier()
    message = "takes a dict of features.* call fit, evaluate or predict\\.$"
    for x in ("a", ["a"], np.array(["a"])):
        with refused(message):
            model(x)
    if ON_TENSORFLOW:
        # Other backends refuse strings before the model is called.
        model.compile()
        on_tensors = model.train_on_batch, model.test_on_batch
        for act in (*on_tensors, model.predict_on_batch):
            with refused("For texts, call fit, evaluate or predict"):
                act(["good"])


def test_teachers_that_do_not_fit():
    """For other models see tests/checkpoints/test_compatibility.py."""
    model = classifier()
    with refused("`teacher` must be a TextClassifier, or a path"):
        model.fit(TEXTS, teacher=model.model)
    with refused("labels"):
        model.fit(TEXTS, teacher=model, validation_data=(TEXTS,))
    with refused("No text has a label"):
        model.fit(TEXTS, teacher=model, class_weight="balanced")
    model.compile(loss="mse")
    with refused("A teacher needs `loss=auto`"):
        model.fit(TEXTS, teacher=model)


def test_parts_of_data():
    rows = ["a", "b", "c", "d"]
    for x in ([], ([], []), ["a"]):
        with refused("validation_split=0.5 of . texts leaves no text"):
            hold_out(Part(x), 0.5)
    for divide in (
        lambda *others: hold_out(Part(rows, *others), 0.5),
        lambda *others: whole(Part(rows, *others), True, 1, 2),
    ):
        with refused("number of labels must be 4, the number of texts; got 3"):
            divide([1] * 3)
        with refused("sample_weight must be 4 numbers of at least 0, one"):
            divide([1] * 4, [1.0] * 6)
    # Several labels of one text need no order.
    assert sorted(plain_row({"a", "b"}, "example 0")) == ["a", "b"]


def test_iterators_and_tables():
    model, data = classifier(), (["a b", "c"], [0, 1])
    for make_x, message in (
        (lambda: iter(["a"]), "Dataset with from_generator, or a keras"),
        (Table, r'text and label. Pass one of them, such as ds\["text'),
    ):
        for act in (
            model.predict,
            model.evaluate,
            functools.partial(model.fit, steps_per_epoch=4),
            lambda x: model.fit(x, [0]),
            lambda x: model.fit(*data, validation_data=x),
        ):
            with refused(message):
                act(make_x())


def test_labels_and_weights_of_a_data_set():
    model, x = classifier(), ["a", "b"]
    data = small_text_models.Sequence(["a", "b", "c"], [0, 1, 1])
    for options in ({"y": [0, 1, 1]}, {"sample_weight": [1.0] * 3}):
        with refused("leave out y and sample_weight"):
            model.fit(data, **options)
    for columns, message in (
        ((x, [0]), "number of labels must be 2, the number of texts; got 1"),
        (((x, ["a"]), [0, 1]), "columns of texts must be equally long"),
        ((x, [0, 1], [1.0]), "sample_weight must be 2 numbers"),
        ((x, [0, 1], [1.0] * 2, x), "An element of a data set must be"),
    ):
        with refused(message):
            model.fit(small_text_models.Sequence(*columns))


@pytest.mark.parametrize(
    ("names", "label"),
    [
        (("1", "2", "3"), 0),
        (("True", "False"), 0),
        (("bad", "good"), "0"),
    ],
)
def test_positions_do_not_count_beside_names_of_numbers(names, label):
    model = classifier(len(names), problem="single_label", labels=names)
    with refused(f"must be one of {names[0]}.* or {names[-1]}; got {label!r}"):
        model.evaluate(["a"], [label])
    with refused("class_weight must be 'balanced' or a dict of numbers for"):
        model.fit(["a"], [names[0]], class_weight={label: 2.0})


def test_quantized_and_adapted_models(tmp_path):
    model = classifier()
    model.enable_lora(2)
    model.save_lora_weights(tmp_path / "lora")
    with pytest.raises(InputError, match="Call merge_lora before quantize"):
        model.quantize("int8")
    other = classifier(labels=["good", "bad"])
    with pytest.raises(InputError, match=r"labels \['bad', 'good'\]"):
        other.load_lora_weights(tmp_path / "lora")
