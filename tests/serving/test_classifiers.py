"""Served classes, numbers and choices are those of run_classifier.py."""

import functools
import itertools

import numpy as np
import pytest

from bert_tf.errors import InputError
from bert_tf.heads import BertClassifier, BertMultipleChoice
from bert_tf.serving.served import (
    FEATURES,
    THRESHOLD,
    ServedClassifier,
    ServedMultipleChoice,
)
from bert_tf.tasks import classification
from bert_tf.tasks.encoding import Encoding, make_features
from bert_tf.tasks.examples import Example
from tests.serving.small_served import (
    CONFIG,
    ENCODING,
    LENGTH,
    NASTY,
    answer,
    answer_tokens,
    assert_likeliest,
    random_weights,
    text_of,
    tokenize,
)

LABELS = ("no", "yes, of course", "可能")
NUM_CHOICES = 3
PROBLEMS = {"single_label": LABELS, "multi_label": LABELS, "regression": ()}

by_problem = pytest.mark.parametrize("problem", PROBLEMS)
for_pairs_too = pytest.mark.parametrize("is_pair", [False, True])


@functools.cache
def classifier(problem, is_pair=False):
    labels = PROBLEMS[problem]
    model = random_weights(BertClassifier(CONFIG, max(1, len(labels))))
    return ServedClassifier(model, ENCODING, labels, problem, is_pair)


@pytest.fixture(scope="module")
def choosing():
    model = random_weights(BertMultipleChoice(CONFIG))
    return ServedMultipleChoice(model, ENCODING, NUM_CHOICES)


def twins(model, examples, problem, labels=(), num_choices=0):
    """The features and the probabilities that run_classifier.py has."""
    encoding = Encoding(
        **vars(ENCODING),
        problem=problem,
        labels=labels,
        num_choices=num_choices,
    )
    batch = make_features(examples, encoding).batch
    features = {name: batch[name] for name in FEATURES}
    logits = model(features)["logits"]
    return features, classification.probabilities(problem, logits)


def asked(is_pair, every=1):
    """Nasty texts or pairs of them: what a server gets, and as Examples."""
    rows = list(itertools.product(NASTY, repeat=1 + is_pair))[::every]
    names = ("text_a", "text_b") if is_pair else ("text",)
    examples = [
        Example(str(number), *map(text_of, row))
        for number, row in enumerate(rows)
    ]
    return dict(zip(names, zip(*rows, strict=True), strict=True)), examples


def assert_chosen(chosen, probabilities, expected):
    """The likeliest are chosen, for the twin as well.

    Args:
      chosen: Numbers of the classes that are answered, integers [n].
      probabilities: What was answered with them, floats [n, C].
      expected: The probabilities of the twin, floats [n, C].
    """
    np.testing.assert_allclose(probabilities, expected, atol=1e-4)
    np.testing.assert_array_equal(chosen, probabilities.argmax(axis=-1))
    assert_likeliest(chosen, expected)


def assert_answers(got, problem, expected):
    """Compares with the probabilities, or numbers, of the twin."""
    if problem == "regression":
        assert list(got) == ["score"]
        np.testing.assert_allclose(
            got["score"], expected, atol=1e-4 * np.ptp(expected)
        )
        assert np.std(expected) > 0.1  # There is something to tell apart.
        return
    np.testing.assert_allclose(got["probabilities"], expected, atol=1e-4)
    assert np.std(expected, axis=0).min() > 0.01
    names = np.array([label.encode() for label in LABELS], object)
    assert (got["labels"] == names).all()
    assert got["labels"].shape == expected.shape
    if problem == "multi_label":
        is_clear = np.abs(expected - THRESHOLD) > 1e-3
        assert is_clear.mean() > 0.9
        decided = classification.decide(problem, expected)
        np.testing.assert_array_equal(
            got["is_present"][is_clear], decided[is_clear]
        )
        assert got["is_present"].dtype == bool
    else:
        chosen = (got["label"][:, np.newaxis] == names).argmax(axis=1)
        assert_chosen(chosen, got["probabilities"], expected)
        np.testing.assert_array_equal(
            got["probability"], got["probabilities"].max(axis=-1)
        )


@pytest.mark.parametrize(
    ("problem", "is_pair"),
    [
        ("single_label", True),
        ("regression", False),
        pytest.param("single_label", False, marks=pytest.mark.slow),
        pytest.param("regression", True, marks=pytest.mark.slow),
        pytest.param("multi_label", False, marks=pytest.mark.slow),
        pytest.param("multi_label", True, marks=pytest.mark.slow),
    ],
)
def test_answers_are_those_of_the_script(problem, is_pair):
    served = classifier(problem, is_pair)
    texts, examples = asked(is_pair, every=5 if is_pair else 1)
    features, expected = twins(
        served.model, examples, problem, PROBLEMS[problem]
    )
    assert_answers(answer(served, texts), problem, expected)
    assert_answers(answer_tokens(served, features), problem, expected)


@for_pairs_too
def test_sequences_are_those_of_the_script(is_pair):
    served = classifier("regression", is_pair)
    texts, examples = asked(is_pair)
    features, _ = twins(served.model, examples, "regression")
    seen = tokenize(served, texts)
    for name in FEATURES:
        np.testing.assert_array_equal(seen[name], features[name])
    vocab = np.array([token.encode() for token in ENCODING.vocab], object)
    np.testing.assert_array_equal(seen["tokens"], vocab[seen["input_ids"]])


@by_problem
def test_padding_changes_nothing(problem):
    served = classifier(problem)
    texts = [b"the cat", NASTY[-3], b""]
    together = answer(served, {"text": texts})
    assert tokenize(served, {"text": texts[:1]})["input_ids"].shape == (1, 4)
    for row, text in enumerate(texts):
        alone = answer(served, {"text": [text]})
        for name, values in alone.items():
            if values.dtype == np.float32:
                np.testing.assert_allclose(
                    values[0], together[name][row], atol=1e-4
                )
            else:
                np.testing.assert_array_equal(values[0], together[name][row])


@by_problem
@for_pairs_too
def test_no_texts_give_no_answers(problem, is_pair):
    served = classifier(problem, is_pair)
    nothing = {name: [] for name in served.inputs}
    some = answer(served, served.example)
    assert all(len(values) == 2 for values in some.values())
    none = answer(served, nothing)
    assert {name: values.shape for name, values in none.items()} == {
        name: (0, *values.shape[1:]) for name, values in some.items()
    }


@for_pairs_too
def test_no_texts_give_no_tokens(is_pair):
    """Whatever becomes of them: the graph is that of the sequences above."""
    served = classifier("regression", is_pair)
    seen = tokenize(served, {name: [] for name in served.inputs})
    assert seen["tokens"].shape[0] == 0


@pytest.mark.parametrize(
    ("problem", "labels", "message"),
    [
        ("ranking", LABELS, "one of single_label, .*; got 'ranking'"),
        ("single_label", LABELS[:2], "has 3 logits, but .* needs 2"),
        ("regression", (), "has 3 logits, but .* needs 1"),
        ("multi_label", ("a\nb", "b", "c"), "labels.txt"),
    ],
)
def test_refuses_labels_that_do_not_fit_the_model(problem, labels, message):
    model = BertClassifier(CONFIG, 3)
    with pytest.raises(InputError, match=message):
        ServedClassifier(model, ENCODING, labels, problem, is_pair=False)


# ----------------------------------------------------------- multiple choice


def questions():
    """Nasty contexts, each with nasty choices."""
    choices = [np.roll(NASTY, n + 1)[:NUM_CHOICES].tolist() for n in range(22)]
    examples = [
        Example(
            str(n), text_of(NASTY[n]), choices=tuple(map(text_of, choices[n]))
        )
        for n in range(len(NASTY))
    ]
    return {"context": NASTY, "choices": choices}, examples


def test_choices_are_those_of_the_script(choosing):
    texts, examples = questions()
    features, expected = twins(
        choosing.model,
        examples,
        "multiple_choice",
        tuple("012"),
        num_choices=NUM_CHOICES,
    )
    got = answer(choosing, texts)
    assert got["choice"].dtype == np.int32
    assert len(set(got["choice"])) == NUM_CHOICES
    assert got["choice_text"].tolist() == [
        row[number]
        for row, number in zip(texts["choices"], got["choice"], strict=True)
    ]
    from_tokens = answer_tokens(choosing, features)
    assert set(from_tokens) == set(got) - {"choice_text"}
    for answers in (got, from_tokens):
        chances = answers["probabilities"]
        assert_chosen(answers["choice"], chances, expected)
        np.testing.assert_array_equal(answers["probability"], chances.max(1))
    seen = tokenize(choosing, texts)
    assert seen["tokens"].shape == (len(NASTY), NUM_CHOICES, LENGTH)
    for name in FEATURES:
        np.testing.assert_array_equal(seen[name], features[name])


def test_no_contexts_give_no_answers(choosing):
    nothing = {"context": [], "choices": np.empty([0, NUM_CHOICES], object)}
    some = answer(choosing, choosing.example)
    assert some["probabilities"].shape == (2, NUM_CHOICES)
    none = answer(choosing, nothing)
    assert {name: values.shape for name, values in none.items()} == {
        name: (0, *values.shape[1:]) for name, values in some.items()
    }
    assert tokenize(choosing, nothing)["tokens"].shape[:2] == (0, NUM_CHOICES)


@pytest.mark.parametrize("num_choices", [2, 5])
def test_the_example_has_the_number_of_choices(num_choices):
    served = ServedMultipleChoice(
        BertMultipleChoice(CONFIG), ENCODING, num_choices
    )
    assert [len(row) for row in served.example["choices"]] == [num_choices] * 2
