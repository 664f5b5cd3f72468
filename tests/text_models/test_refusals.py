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
MISSING = (None, np.nan, np.float32("nan"), np.float16("nan"))
IN_A_LIST = "Texts or labels must be in a list, a column or a data set; got"
POSITIVE = "{} must be a positive integer; got {}"
SAMPLE_WEIGHTS = "sample_weight must be 1 numbers of at least 0, one for"
CLASS_WEIGHTS = "must be 'balanced' or a dict of numbers for bad or good"
MISSPELLED = "Did you mean 'good'?"
ANSWER = "answer to question 0 must be a string, a pair"
NO_ANSWER = "has no answer.* pass with_negative=True"
A_TUPLE = r"alidation.data must .* a tuple \(x, y\) or \(x,"
CALLBACKS = r"callbacks must be a keras\.callbacks\.Callback, or a"
OUTSIDE = "max_seq_length must be from 3 to 19, the model's"


class Table:
    """A table of Hugging Face's `datasets`."""

    column_names = ("text", "label")

    def __len__(self):
        return 1


# The kind of model, the arguments of `fit`, and the message.
FIT = [
    ("classifier", (["a"],), "Labels are missing"),
    ("classifier", ([], []), "There are no texts"),
    (
        *("classifier", (["a"], ["good", "bad"])),
        "number of labels must be 1, the number of texts; got 2",
    ),
    (
        *("classifier", (["a"], ["goood"])),
        f"label must be one of bad or good; got 'goood'. {MISSPELLED}",
    ),
    ("classifier", (["a"], "good"), f"{IN_A_LIST} 'good'"),
    ("classifier", (["a"], {"a": 0.0}), IN_A_LIST),
    ("classifier", (["a"], {0.0}), IN_A_LIST),
    ("classifier", (["a"], iter([0])), IN_A_LIST),
    (
        *("classifier", (["a", "b"], [1.0, 0.5])),
        "example 1: the label must be one of bad or good; got 0.5",
    ),
    *(
        ("classifier", (["a", "b"], ["good", x]), "1: the label is missing")
        for x in MISSING
    ),
    *(
        ("number", (["a", "b"], [0.5, x]), "1: the label is missing")
        for x in MISSING
    ),
    *(
        ("number", (["a"], [x]), "0: the label must be a finite number; got")
        for x in (np.inf, -np.inf, 1e39, "nan", HUGE)
    ),
    *(
        ("several", (["a"], x), "must be names, or 0 or 1 for each of the 2")
        for x in ([[1]], [[0, 2]], [[1, 0, 1]])
    ),
    ("several", (["a"], ["good"]), "of example 0 must be a list; got 'good'"),
    ("embedder", (PAIRS, [0.5, 5]), "must be cosines, from -1 to 1; got 5"),
    *(
        ("embedder", (PAIRS, scores), "The scores must be numbers; got")
        for scores in ([[1.0], [0.0]], [[1.0, 0.0], [0.0]], [0.0, HUGE])
    ),
    *(
        ("embedder", (PAIRS, [0.5, x]), "pair 1: the score is missing")
        for x in MISSING
    ),
    ("filler", (["a b"], [1]), "leave out `y`"),
    ("tagger", ([""], [[]]), "There are no texts with words"),
    ("tagger", (["a b"], [["O"]]), "text 0 has 2 words, but 1 tags"),
    ("tagger", (["a"], [None]), "The labels of text 0 must be a list; got"),
    *(
        ("tagger", ([["a"]], [[tag]]), "not one of the labels O, B-X and I-X")
        for tag in (None, np.nan, 3, "B-Z")
    ),
    *(
        ("answerer", (PAIR, [answer]), message)
        for answer, message in (
            *((x, ANSWER) for x in (3, [], ("b", "c"), [{"text": "b"}])),
            ({"text": ["b"]}, ANSWER),
            (None, "question 0: the answer is missing"),
            ("", f"question 0 {NO_ANSWER}"),
            ({"text": [], "answer_start": []}, f"question 0 {NO_ANSWER}"),
            ("z", "question 0: the text does not contain 'z'"),
            (("z", 1), "question 0: the text does not contain 'z'"),
            (("b", 1), "question 0: at character 1 the text has '', not 'b'"),
            (("b", -1), "question 0: at character -1 the text has"),
        )
    ),
    ("answerer", ([], []), "There are no questions"),
]


# Options of `fit` of a classifier.
OPTIONS = [
    ({"epochs": 0}, POSITIVE.format("epochs", "0")),
    ({"epochs": "3"}, POSITIVE.format("epochs", "'3'")),
    ({"batch_size": "8"}, POSITIVE.format("batch_size", "'8'")),
    ({"seed": -1}, "seed must be an integer of at least 0; got -1"),
    ({"initial_epoch": 1.5}, "initial_epoch must be an integer of at least 0"),
    *(
        ({"sample_weight": x}, SAMPLE_WEIGHTS)
        for x in ([1.0, 2.0], [np.nan], [-1.0], ["much"], 3, [HUGE])
    ),
    ({"shuffle": False}, "fit does not accept shuffle"),
    ({"steps_per_epoch": 3}, "steps_per_epoch is for a data set"),
    ({"epoch": 3}, "fit has no option 'epoch'. Did you mean 'epochs'?"),
    *(
        ({"class_weight": x}, CLASS_WEIGHTS)
        for x in (
            *({"good": x} for x in (None, np.nan, -1.0, HUGE)),
            *({2: 1.0}, {"good": 0.0, "bad": 0.0}, [1.0], "equal"),
        )
    ),
    ({"class_weight": {"god": 2}}, f"got {{'god': 2}}. {MISSPELLED}"),
    ({"callbacks": [3]}, CALLBACKS),
    ({"validation_split": 2}, "validation_split must be at least 0 and below"),
    ({"temperature": 2.0}, "`temperature` has no effect without `teacher`"),
    *(
        ({"validation_data": x}, A_TUPLE)
        for x in (["a"], [["a"], [0]], (["a"],), (["a"], [0], None, None), "a")
    ),
    *(
        ({"validation_data": (["a"], [0]), name: x}, f"{name} must be a posi")
        for name, values in {
            "validation_freq": (0, "2", 1.5, [0], None),
            "validation_batch_size": (0, -1, "8"),
            "validation_steps": (0, 1.5),
        }.items()
        for x in values
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
    for make in (tagger, answerer):
        with refused(A_TUPLE):
            make().fit(PAIR, ["b"], validation_data=(PAIR,))
    model = embedder()
    with refused("There are no texts"):
        model.fit(PAIRS, validation_data=([], None))
    with refused("class_weight needs one label for each text or word"):
        model.fit(PAIRS, class_weight={0: 1})


# The kind of model, what is called, and the message.
CALLS = [
    ("classifier", lambda m: m.predict(["a", 3]), "Text 1 must be a string; "),
    *(
        (
            *("classifier", lambda m, x=x: m.predict([("a", "b"), x])),
            "Some texts are pairs and others are not",
        )
        for x in (("c",), "cd", None)
    ),
    (
        *("classifier", lambda m: m.predict(("a", "b", "c"))),
        "pairs of texts; got 3 columns. Pass several texts as a list",
    ),
    (
        *("classifier", lambda m: m.predict(["a"], batch_size=0)),
        POSITIVE.format("batch_size", 0),
    ),
    (
        *("classifier", lambda m: m.predict(["a"], steps=0)),
        POSITIVE.format("steps", 0),
    ),
    *(
        ("classifier", lambda m, x=x: m.predict(["a"], callbacks=x), CALLBACKS)
        for x in ("x", [3], keras.callbacks.EarlyStopping, [None])
    ),
    ("filler", lambda m: m.evaluate(["a b"], callbacks=[3]), CALLBACKS),
    (
        *("classifier", lambda m: m.compile(optimizer=None)),
        "optimizer must be an optimizer or its name; got None",
    ),
    (
        *("classifier", lambda m: m.compile("adam", learning_rate=0.1)),
        "learning_rate is for optimizer='auto'",
    ),
    *(
        (
            *("classifier", lambda m, x=x: m.compile(learning_rate=x)),
            f"learning_rate must be a positive number; got {x!r}",
        )
        for x in ("fast", -1.0, 0)
    ),
    *(
        (
            *("embedder", lambda m, x=x: m.compile(**{x: ["mse"]})),
            f"TextEmbedder has its own loss and scores. Leave out {x}",
        )
        for x in ("loss", "metrics", "weighted_metrics")
    ),
    (
        *("filler", lambda m: m.predict("[MASK]", top_k=2.5)),
        POSITIVE.format("top_k", 2.5),
    ),
    ("filler", lambda m: m.predict([("[MASK]", "a")]), "single texts, not pai"),
    ("embedder", lambda m: m.predict(PAIR), "Expected single texts; got pairs"),
    (
        *("embedder", lambda m: m.evaluate(PAIR, [1.0, 0.0])),
        "number of labels must be 1, the number of texts; got 2",
    ),
    (
        *("embedder", lambda m: m.fit(["a"], teacher=m)),
        "has no `teacher`",
    ),
    ("answerer", lambda m: m.predict(["a"]), "pass pairs of strings"),
    # The keys of a dict are no texts, and a set has no order.
    *(
        ("tagger", lambda m, x=x: m.predict(x), IN_A_LIST)
        for x in ({"text": ["a b"]}, {"a b", "c"}, frozenset(["a b"]), None, 3)
    ),
    ("filler", lambda m: m.predict(np.array("a"), verbose=0), IN_A_LIST),
]


CALLS += [
    (kind, lambda model, arguments=arguments: model.fit(*arguments), message)
    for kind, arguments, message in FIT
]


@pytest.mark.parametrize("kind", sorted({kind for kind, *_ in CALLS}))
def test_calls(kind):
    model = KINDS[kind]()
    for of, call, message in CALLS:
        if of == kind:
            with refused(message):
                call(model)


# What is called, its options, and the message.
MADE = [
    (classifier, {"max_seq_length": 20}, OUTSIDE),
    (classifier, {"max_seq_length": "9"}, POSITIVE.format(OUTSIDE[:14], "'9'")),
    (classifier, {"problem": "ranking"}, "problem must be one of single_label"),
    (classifier, {"is_pair": "false"}, "is_pair must be one of True or False"),
    (classifier, {"labels": 5}, "labels must be a list of non-empty names; go"),
    (classifier, {"doc_stride": 0}, POSITIVE.format("doc_stride", 0)),
    (
        *(classifier, {"window_pooling": "sum", "doc_stride": 3}),
        "window_pooling must be one of mean or max; got 'sum'",
    ),
    (embedder, {"pooling": "sum"}, "pooling must be one of pooled, cls, mean"),
    (embedder, {"normalize": "false"}, "normalize must be one of True or Fal"),
    (answerer, {"with_negative": "false"}, "with_negative must be one of True"),
    (
        *(answerer, {"max_query_length": 17}),
        "^`max_seq_length` must .* with `max_query_length=17`, to",
    ),
    (answerer, {"doc_stride": 0}, POSITIVE.format("doc_stride", 0)),
    (lambda: bert_tf.TextEmbedder("x", TOKENIZER), {}, "model must be a Bert"),
    (
        *(lambda: bert_tf.TextEmbedder(bert_tf.BertModel(CONFIG), "x"), {}),
        "tokenizer must be a FullTokenizer or a BertTokenizer",
    ),
    # Python takes "false" for true.
    *(
        (
            functools.partial(bert_tf.FullTokenizer, [*VOCAB]),
            *({"do_lower_case": x}, "do_lower_case must be one of True or"),
        )
        for x in ("false", None, [], 2)
    ),
]


def test_options_of_models():
    for make, options, message in MADE:
        with refused(message):
            make(**options)
    bert_tf.FullTokenizer([*VOCAB], do_lower_case=np.True_)
    for make, x in ((classifier, "a"), (embedder, "a"), (tagger, "a")):
        model = make()
        model.max_seq_length = 20
        with refused(OUTSIDE):
            model.predict(x)


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
    for x in ("a", ["a"], ("a", "b"), np.array(["a"]), None):
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
    model, other = classifier(), classifier(labels=["x", "y"])
    for teacher, message in (
        (other, "`teacher` has the labels x and y; the model"),
        (model.model, "`teacher` must be a TextClassifier, or a path"),
    ):
        with refused(message):
            model.fit(TEXTS, teacher=teacher)
    for name, value in (
        *(("temperature", x) for x in (np.nan, 0.09, 101)),
        *(("distillation_weight", x) for x in ("1", 1.1)),
    ):
        with refused(f"`{name}` must be "):
            model.fit(TEXTS, teacher=model, **{name: value})
    for data in ((TEXTS,), (TEXTS, [None] * len(TEXTS))):
        with refused("labels"):
            model.fit(TEXTS, teacher=model, validation_data=data)
    with refused("No text has a label"):
        model.fit(TEXTS, teacher=model, class_weight="balanced")
    model.compile(loss="mse")
    with refused("A teacher needs `loss=auto`"):
        model.fit(TEXTS, teacher=model)


def test_parts_of_data():
    rows = ["a", "b", "c", "d"]
    for x in ([], (), {}, ([], []), ["a"]):
        with refused("validation_split=0.5 of . texts leaves no text"):
            hold_out(Part(x), 0.5)
    for divide in (
        lambda y, weights: hold_out(Part(rows, y, weights), 0.5),
        lambda y, weights: whole(Part(rows, y, weights), True, 1, 2),
    ):
        for labels in ([1] * 3, [1] * 6):
            with refused(
                f"The number of labels must be 4, the number of texts; got "
                f"{len(labels)}"
            ):
                divide(labels, None)
        for weights in ([1.0] * 3, [1.0] * 6, 2.0):
            with refused("sample_weight must be 4 numbers of at least 0, one"):
                divide([1] * 4, weights)
    # Several labels of one text need no order.
    assert sorted(plain_row({"a", "b"}, "example 0")) == ["a", "b"]
    with refused("The labels of example 0 must be a list; got"):
        plain_row({"a": 0, "b": 1}, "example 0")


def test_iterators_and_tables():
    data = ["a b", "c"], [0, 1]
    for model in (classifier(), answerer()):
        for make_x, message in (
            (lambda: iter(["a"]), "Dataset with from_generator, or a keras"),
            (lambda: map(str, "a"), f"{IN_A_LIST} <map"),
            (Table, r'text and label. Pass one of them, such as ds\["text'),
        ):
            for act in (
                model.predict,
                model.evaluate,
                functools.partial(model.fit, steps_per_epoch=4),
                lambda x, model=model: model.fit(x, [0]),
                lambda x, model=model: model.fit(*data, validation_data=x),
            ):
                with refused(message):
                    act(make_x())


def test_labels_and_weights_of_a_data_set():
    model, x = classifier(), ["a", "b"]
    data = small_text_models.Sequence(["a", "b", "c"], [0, 1, 1])
    for act in (model.fit, model.evaluate):
        for options in ({"y": [0, 1, 1]}, {"sample_weight": [1.0] * 3}):
            with refused("leave out y and sample_weight"):
                act(data, **options)
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
        (("0", "1"), True),
        (("True", "False"), 0),
        (("none", "2"), 0),
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
