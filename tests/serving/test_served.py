"""What every served model does with texts of any shape."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_text  # noqa: F401 (for the op of the tokenizer)

from bert_tf.errors import InputError
from bert_tf.heads import BertTokenClassifier
from bert_tf.serving.served import (
    BATCH_SIZE,
    FEATURES,
    Names,
    Served,
    in_batches,
    rows_by_text,
)
from bert_tf.serving.tags import ServedTagger
from bert_tf.tasks.ner import TaggingEncoding
from tests.serving import small_exports
from tests.serving.small_served import (
    CONFIG,
    ENCODING,
    NASTY,
    VOCAB,
    text_of,
    tokenize,
)

# Names, texts and shapes.


# Tables take no blank line; Google's Chinese vocabulary has one.
LABELS = ("no", "", " yes, 可能 ", "\ud83e")


class Counted(Served):
    """Says how long texts, or pairs, are."""

    kind = "length"

    def __init__(self, *names):
        super().__init__(None, ENCODING, LABELS)
        self.names = names

    @property
    def inputs(self):
        return {name: tf.TensorSpec([None], tf.string) for name in self.names}

    @property
    def example(self):
        return {name: ["the cat", "sat"] for name in self.names}

    def answer(self, texts):
        return self.answer_tokens(self.features(texts))

    def answer_tokens(self, features):
        return {"length": tf.reduce_sum(features["input_mask"], axis=1)}


def test_looks_up_names(tmp_path):
    names = Names(LABELS, tmp_path / "labels.txt")
    found = names(tf.constant([[2, 0], [1, -1], [3, 99]])).numpy()
    expected = [[" yes, 可能 ".encode(), b"no"], [b"", b""], [b"?", b""]]
    assert found.tolist() == expected
    assert names(tf.zeros([0, 3], tf.int64)).shape == (0, 3)
    text = (tmp_path / "labels.txt").read_text("utf-8")
    assert text == "no\n \n yes, 可能 \n?\n"


def test_a_name_may_be_empty(tmp_path):
    names = Names(["no", " "], tmp_path / "labels.txt")
    assert names([1, 0]).numpy().tolist() == [b" ", b"no"]


@pytest.mark.parametrize("name", ["a\nb", "a\r", "\n", "a\x85b", "\u2028"])
def test_refuses_names_of_several_lines(tmp_path, name):
    with pytest.raises(InputError, match=r"labels\.txt: name .* lines"):
        Names(["no", name], tmp_path / "labels.txt")


def test_texts_and_pairs():
    """In the order of `inputs`, not in that of the names."""
    texts = {"context": ["the cat", ""], "answer": ["sat", "on"]}
    cls_id, sep_id, the, cat, sat, on = (
        ENCODING.vocab.index(token)
        for token in ("[CLS]", "[SEP]", "the", "cat", "sat", "on")
    )
    pairs = tokenize(Counted("context", "answer"), texts)
    assert list(pairs) == ["tokens", *FEATURES]
    assert pairs["input_ids"].tolist() == [
        [cls_id, the, cat, sep_id, sat, sep_id],
        [cls_id, sep_id, on, sep_id, 0, 0],
    ]
    assert pairs["segment_ids"].tolist() == [
        [0, 0, 0, 0, 1, 1],
        [0, 0, 1, 1, 0, 0],
    ]
    tokens = [b"[CLS]", b"[SEP]", b"on", b"[SEP]", b"[PAD]", b"[PAD]"]
    assert pairs["tokens"][1].tolist() == tokens
    alone = tokenize(Counted("answer"), texts)
    assert alone["input_ids"].tolist() == [
        [cls_id, sat, sep_id],
        [cls_id, on, sep_id],
    ]


class Choosing(Counted):
    """Takes a matrix beside a vector."""

    @property
    def inputs(self):
        choices = tf.TensorSpec([None, 3], tf.string, "choices")
        return {**super().inputs, "choices": choices}


@pytest.mark.parametrize(
    ("context", "choices", "message"),
    [
        ([], [["a"] * 3], "choices of shape [0,3], a row for each context. "),
        (["a"], [["a"] * 3] * 2, "each context. Received: [2,3]"),
        (["a"], ["a"] * 3, "each context. Received: [3]"),
        (["a"], [["a"] * 2], "each context. Received: [1,2]"),
        ([["a"]], [["a"] * 3], "context of shape [1]. Received: [1,1]"),
        ("a", [["a"] * 3], "context of shape [1]. Received: []"),
    ],
)
def test_refuses_inputs_of_other_shapes(context, choices, message):
    """A server gives the graph whatever shapes it gets, as is done here."""
    served = Choosing("context")

    @tf.function
    def checked(**texts):
        return served.checked(texts)

    graph = checked.get_concrete_function(**served.inputs)
    given = {
        "context": tf.constant(context, tf.string),
        "choices": tf.constant(choices, tf.string),
    }
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        graph(**given)
    assert message in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["answers", "pairs", "choices", "tags"])
def test_exports_refuse_inputs_of_other_shapes(kind):
    loaded = tf.saved_model.load(str(small_exports.path_of(kind)))
    example = small_exports.served(kind).example
    for signature in ("serving_default", "tokenize"):
        for name, rows in example.items():
            texts = {**example, name: [rows]}
            inputs = {key: tf.constant(value) for key, value in texts.items()}
            with pytest.raises(
                tf.errors.InvalidArgumentError, match=r"Expected \w+ of shape"
            ):
                loaded.signatures[signature](**inputs)


@pytest.mark.slow
def test_refuses_a_mask_of_another_shape():
    """TensorFlow's kernels crashed the process for the empty mask."""
    loaded = tf.saved_model.load(str(small_exports.path_of("pairs")))
    for shape in ((0, 0), (2, 4), (3, 5)):
        features = dict.fromkeys(FEATURES, tf.ones([2, 5], tf.int32))
        features["input_mask"] = tf.ones(shape, tf.int32)
        with pytest.raises(tf.errors.InvalidArgumentError, match="reshape"):
            loaded.signatures["tokens"](**features)


def test_tokenizes_two_tensors_in_one_call():
    served = Counted("text")
    first, second = served.ids([tf.constant(NASTY), tf.constant(NASTY[4:6])])
    expected = [ENCODING.tokenizer.encode(text_of(text)) for text in NASTY]
    assert first.to_list() == expected
    assert second.to_list() == expected[4:6]
    none, some = served.ids([tf.constant([], tf.string), tf.constant(["a"])])
    assert none.to_list() == []
    assert some.to_list() == [ENCODING.tokenizer.encode("a")]


def test_the_inputs_of_the_signatures():
    served = Counted("text")
    for name, spec in served.token_inputs.items():
        assert spec == tf.TensorSpec([None, None], tf.int32, name)
    assert tuple(served.token_inputs) == FEATURES
    found = served.label_names(tf.range(2)).numpy()
    assert found.tolist() == [b"no", b""]


# Rows of long texts.


PAD, UNK, CLS, SEP = range(4)
LENGTH = 5


@pytest.mark.parametrize("is_graph", [False, True])
@pytest.mark.parametrize(
    "count", [0, 1, BATCH_SIZE, BATCH_SIZE + 1, 3 * BATCH_SIZE + 7]
)
def test_batches_give_the_same_as_the_whole(count, is_graph):
    sizes = []

    def compute(features):
        ids = features["input_ids"]
        tf.py_function(lambda x: sizes.append(len(x)), [ids], [])
        return {
            "sums": ids + features["segment_ids"],
            "pairs": tf.stack([ids, -ids], axis=2),
            "not_wanted": ids,
        }

    def run(features):
        length = tf.shape(features["input_ids"])[1]
        nothing = {
            "pairs": tf.zeros([0, length, 2], tf.int32),
            "sums": tf.zeros([0, length], tf.int32),
        }
        return in_batches(compute, features, nothing)

    any_shape = tf.TensorSpec([None, None], tf.int32)
    if is_graph:
        names = ("input_ids", "segment_ids")
        run = tf.function(run, [dict.fromkeys(names, any_shape)])
    ids = np.arange(count * LENGTH, dtype="int32").reshape(count, LENGTH)
    done = run(
        {"input_ids": tf.constant(ids), "segment_ids": tf.ones_like(ids)}
    )
    assert set(done) == {"pairs", "sums"}
    assert (done["sums"].numpy() == ids + 1).all()
    assert (done["pairs"].numpy() == np.stack([ids, -ids], axis=2)).all()
    assert done["pairs"].shape == (count, LENGTH, 2)
    assert sum(sizes) == count
    assert all(0 < size <= BATCH_SIZE for size in sizes)


def test_groups_rows_by_text():
    encoding = TaggingEncoding(VOCAB, True, None, LENGTH, ("O", "B"))
    served = ServedTagger(BertTokenClassifier(CONFIG, 2), encoding)
    ids = tf.constant([[CLS, SEP], [CLS, UNK], [UNK, SEP]])
    features = {"input_ids": ids, "input_mask": tf.ones_like(ids)}
    texts = tf.constant([1, 1, 3], tf.int64)
    num_rows, seen = rows_by_text(served, features, texts, tf.constant(4))
    assert num_rows.numpy().tolist() == [0, 2, 0, 1]
    nothing = [PAD, PAD]
    assert seen["input_ids"].numpy().tolist() == [
        [nothing, nothing],
        [[CLS, SEP], [CLS, UNK]],
        [nothing, nothing],
        [[UNK, SEP], nothing],
    ]
    assert seen["input_mask"].numpy().sum(axis=(1, 2)).tolist() == [0, 4, 0, 2]
    assert seen["tokens"].numpy()[3, 0].tolist() == [b"[UNK]", b"[SEP]"]
