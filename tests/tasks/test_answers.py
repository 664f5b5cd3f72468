"""Answers chosen from logits, by hand and as the original, and their files."""

import dataclasses
import json
import math
import random
import re

import numpy as np
import pytest
import squad_files

from bert_tf.errors import InputError
from bert_tf.tasks import answers as answers_module
from bert_tf.tasks.answers import (
    AnswerRules,
    Scores,
    answer_questions,
    find_answer,
    json_object_writer,
    metric_names,
    official_scores,
    require_answers,
    write_answers,
)
from bert_tf.tasks.questions import (
    ODDS_WITHOUT_SPAN,
    Question,
    SpanEncoding,
    Window,
    make_windows,
)
from tests import original_span_answers as slow

FIRST = 4  # [CLS], two tokens of a question, [SEP].
CONTEXT = "The U.S.\nhas 50 states."


def question_of(context):
    return Question("q1", "what is", context)


def window_of(context, pattern=r"\w+|[^\w\s]"):
    """Returns a window of the whole context, with one token a match."""
    spans = [match.span() for match in re.finditer(pattern, context)]
    starts, ends = np.array(spans, np.int32).reshape(-1, 2).T
    return Window(0, FIRST, starts, ends, np.full(len(starts), True))


def scores_of(starts, ends, null=(0.0, 0.0)):
    """Returns scores from {position: logit} in the order of rank."""
    return Scores(
        np.array([*starts], np.int32),
        np.array([*starts.values()], np.float32),
        np.array([*ends], np.int32),
        np.array([*ends.values()], np.float32),
        *null,
    )


def answer(context, starts, ends, null=(0.0, 0.0), window=None, **rules):
    return find_answer(
        question_of(context),
        [window or window_of(context)],
        [scores_of(starts, ends, null)],
        AnswerRules(**rules),
    )


def texts(found):
    return [entry["text"] for entry in found.nbest]


# ---------------------------------------------------------- choosing an answer


@pytest.mark.parametrize(
    ("context", "pattern", "first", "last", "text"),
    [
        (CONTEXT, r"\w+|[^\w\s]", 1, 6, "U.S.\nhas 50"),
        ("我爱北京天安门。", ".", 2, 6, "北京天安门"),
        ("ประเทศไทยสวย", ".{1,3}", 0, 2, "ประเทศไทย"),
        ("عاصمة مصر هي القاهرة.", r"\w{1,3}|\.", 4, 6, "القاهرة"),
        ("die Cafe\u0301s hier", r"[\w\u0301]+", 1, 1, "Cafe\u0301s"),
        ("x 🤗🤗 y", r"\S", 1, 2, "🤗🤗"),
    ],
)
def test_an_answer_is_a_slice_of_the_context(
    context, pattern, first, last, text
):
    window = window_of(context, pattern)
    starts, ends = {FIRST + first: 3.0}, {FIRST + last: 2.0}
    found = answer(context, starts, ends, window=window)
    logits = {"start_logit": 3.0, "end_logit": 2.0}
    assert found.nbest == [{"text": text, "probability": 1.0, **logits}]
    assert found.text == found.best_span == text
    assert found.null_odds is None


@pytest.mark.parametrize(
    ("starts", "ends"),
    [
        ({0: 9.0}, {5: 9.0}),  # [CLS]
        ({3: 9.0}, {5: 9.0}),  # before the context
        ({5: 9.0}, {3: 9.0}),
        ({5: 9.0}, {13: 9.0}),  # after the context
        ({13: 9.0}, {13: 9.0}),
        ({6: 9.0}, {5: 9.0}),  # ends before it starts
        ({4: 9.0}, {9: 9.0}),  # six tokens
        ({-1: -np.inf}, {5: 9.0}),  # missing
        ({}, {}),
    ],
)
def test_spans_that_are_not_allowed(starts, ends):
    options = {"max_answer_length": 5}
    found = answer(CONTEXT, starts, ends, **options)
    assert (found.text, found.null_odds) == ("", None)
    nothing = {"text": "", "probability": 1.0}
    assert found.nbest == [nothing | {"start_logit": 0.0, "end_logit": 0.0}]
    better = answer(CONTEXT, starts | {4: 0.0}, ends | {8: 0.0}, **options)
    assert "The U.S." in texts(better)


def test_only_the_start_needs_its_maximum_context():
    window = window_of(CONTEXT)
    window.is_max_context[1:] = False
    found = answer(CONTEXT, {5: 9.0, 4: 1.0}, {5: 9.0, 4: 0.0}, window=window)
    assert texts(found) == ["The U", "The"]


def test_the_largest_length_is_allowed():
    for length, count in ((4, 0), (5, 1), (6, 1)):
        found = answer(CONTEXT, {4: 1.0}, {8: 1.0}, max_answer_length=length)
        assert len([text for text in texts(found) if text]) == count


def test_sorted_marks_are_not_an_empty_answer():
    """NFD sorts marks, so a later token can be an earlier character."""
    window = Window(
        0, FIRST, np.array([0, 2, 1]), np.array([1, 3, 2]), np.full(3, True)
    )
    found = answer("abc", {5: 9.0, 4: 0.0}, {6: 9.0}, window=window)
    assert texts(found) == ["ab"]


def test_the_order_of_equal_scores():
    context = "a b c d"
    scores = [
        scores_of({6: 2.0, 4: 1.0}, {7: 2.0, 6: 1.0}),
        scores_of({5: 4.0}, {5: 0.0}),
    ]
    windows = [window_of(context)] * 2
    rules = AnswerRules()
    found = find_answer(question_of(context), windows, scores, rules)
    assert texts(found) == ["c d", "b", "c", "a b c d", "a b c"]
    scores.reverse()
    found = find_answer(question_of(context), windows, scores, rules)
    assert texts(found) == ["b", "c d", "c", "a b c d", "a b c"]


def test_the_first_of_equal_texts_is_kept():
    found = answer("x y x", {4: 1.0, 6: 2.0}, {4: 1.0, 6: 2.0})
    assert texts(found) == ["x", "x y x"]
    assert found.nbest[0]["start_logit"] == found.nbest[0]["end_logit"] == 2


def test_the_size_and_probabilities_of_the_list():
    places = {FIRST + i: 3.0 - 0.25 * i for i in range(8)}
    for size in (1, 3, 20):
        found = answer(CONTEXT, places, places, n_best_size=size)
        scores = [x["start_logit"] + x["end_logit"] for x in found.nbest]
        assert len(scores) == {1: 1, 3: 3}.get(size, 20)
        assert scores == sorted(scores, reverse=True)
        assert len(set(texts(found))) == len(scores)
        weights = np.exp(scores) / np.sum(np.exp(scores))
        given = [x["probability"] for x in found.nbest]
        np.testing.assert_allclose(given, weights)


def test_only_the_best_starts_and_ends_count():
    found = answer(CONTEXT, {1: 3.0, 4: 2.0}, {4: 1.0}, n_best_size=1)
    assert found.text == ""
    found = answer(CONTEXT, {1: 3.0, 4: 2.0}, {4: 1.0}, n_best_size=2)
    assert found.text == "The"


def test_probabilities_of_distant_logits():
    found = answer("a b", {4: 1e30, 5: -1e30}, {5: 1e30, 4: -1e30})
    assert [x["probability"] for x in found.nbest] == [1.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("threshold", "text"), [(0.0, "The"), (-0.75, "The"), (-0.8125, "")]
)
def test_no_answer_needs_odds_above_the_threshold(threshold, text):
    found = answer(
        CONTEXT,
        {4: 1.0},
        {4: 1.5},
        (1.0, 0.75),
        with_negative=True,
        null_score_diff_threshold=threshold,
    )
    assert (found.text, found.null_odds) == (text, -0.75)
    assert texts(found) == ["The", ""]


@pytest.mark.parametrize(
    ("null", "size", "expected"),
    [
        ((9.0, 9.0), 2, ["", "The"]),
        # Equal to "The": after it, as in the stable sort of the original.
        ((2.0, 2.0), 2, ["The", ""]),
        ((0.0, 3.0), 3, ["The", "The U", ""]),
        # Worse than the whole list: one more entry.
        ((-9.0, 0.0), 2, ["The", "The U", ""]),
    ],
)
def test_no_answer_is_in_the_list(null, size, expected):
    found = answer(
        "The U S",
        {4: 2.0},
        {4: 2.0, 5: 1.0},
        null,
        n_best_size=size,
        with_negative=True,
    )
    assert texts(found) == expected
    entry = found.nbest[expected.index("")]
    assert (entry["start_logit"], entry["end_logit"]) == null


def test_a_list_of_no_answer_only_has_odds():
    """The original crashes where the list has no room for a span."""
    options = {"n_best_size": 1, "with_negative": True}
    found = answer("x", {4: 2.0}, {4: 2.0}, (9.0, 0.0), **options)
    assert (found.text, texts(found), found.null_odds) == ("", [""], 5.0)
    options["null_score_diff_threshold"] = 5.0
    found = answer("x", {4: 2.0}, {4: 2.0}, (9.0, 0.0), **options)
    assert (found.text, texts(found)) == ("x", [""])


def test_the_null_score_is_the_smallest_of_all_windows():
    spans = {4: 1.0}, {4: 1.0}
    nulls = [(5.0, 1.0), (1.0, 2.0), (2.0, 1.0), (9.0, 9.0)]
    found = find_answer(
        question_of(CONTEXT),
        [window_of(CONTEXT)] * 4,
        [scores_of(*spans, null) for null in nulls],
        AnswerRules(with_negative=True),
    )
    assert found.null_odds == 1.0
    # The first of equal ones.
    assert found.nbest[0] == {
        "text": "",
        "probability": pytest.approx(np.e / (1 + np.e)),
        "start_logit": 1.0,
        "end_logit": 2.0,
    }


@pytest.mark.parametrize("threshold", [0.0, 1e9])
def test_without_a_span_there_is_no_answer(threshold):
    """The original crashes with SQuAD 2.0, and answers "empty" otherwise."""
    options = {"with_negative": True, "null_score_diff_threshold": threshold}
    spanless = answer(CONTEXT, {0: 9.0}, {0: 9.0}, (2.5, -1.0), **options)
    blank = find_answer(question_of(" \n"), [], [], AnswerRules(**options))
    for found, logits in ((spanless, (2.5, -1.0)), (blank, (0.0, 0.0))):
        assert found.text == ""
        assert found.null_odds == ODDS_WITHOUT_SPAN
        assert texts(found) == [""]
        [entry] = found.nbest
        assert (entry["start_logit"], entry["end_logit"]) == logits
    json.dumps([spanless.null_odds, blank.nbest], allow_nan=False)
    found = find_answer(question_of(""), [], [], AnswerRules())
    assert (found.text, texts(found), found.null_odds) == ("", [""], None)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", ["start", "end", "null"])
def test_logits_must_be_finite(bad, where):
    starts, ends = {4: 1.0, -1: -np.inf}, {4: 1.0, -1: -np.inf}
    null = (bad, 0.0) if where == "null" else (0.0, 0.0)
    if where == "start":
        starts[5] = bad
    if where == "end":
        ends[5] = bad
    with pytest.raises(InputError, match="question 'q1' are not finite"):
        answer(CONTEXT, starts, ends, null)
    if np.isnan(bad):  # `best_indexes` gives NaN no position.
        with pytest.raises(InputError, match="'q1' are not finite"):
            answer(CONTEXT, {-1: bad}, {4: 1.0})


def test_every_window_has_scores():
    window = window_of(CONTEXT)
    with pytest.raises(ValueError, match="zip"):
        find_answer(question_of(CONTEXT), [window], [], AnswerRules())


@pytest.mark.parametrize("name", ["n_best_size", "max_answer_length"])
def test_rules_are_at_least_1(name):
    with pytest.raises(InputError, match=f"--{name} must be at least 1; got 0"):
        AnswerRules(**{name: 0})


# ---------------------------------------------------------- beside the original


def random_windows(rng, whole):
    """Yields parts of a window, overlapping or with gaps."""
    step, longest = rng.randint(1, 5), rng.randint(3, 9)
    for begin in range(0, len(whole.starts), step):
        shown = slice(begin, begin + longest)
        is_max_context = np.array([rng.random() < 0.7 for _ in range(longest)])
        starts, ends = whole.starts[shown], whole.ends[shown]
        yield Window(0, FIRST, starts, ends, is_max_context[: len(starts)])


def random_logits(rng, window):
    """Returns logits of start and end with many ties, and padding."""
    size = FIRST + len(window.starts) + 1 + rng.randint(0, 3)
    logits = [[rng.randint(-6, 6) / 4 for _ in range(size)] for _ in range(2)]
    return np.array(logits, np.float32)


def random_case(rng):
    context = " ".join(rng.choices("abcde", k=rng.randint(3, 13)))
    windows = list(random_windows(rng, window_of(context)))
    logits = [random_logits(rng, window) for window in windows]
    options = {
        "n_best_size": rng.choice([1, 2, 5, 20]),
        "max_answer_length": rng.choice([1, 3, 30]),
        "with_negative": rng.random() < 0.5,
        "null_score_diff_threshold": rng.choice([-4.0, -2.0, 0.0, 0.5]),
    }
    return context, windows, logits, options


def both_ways(case):
    context, windows, logits, options = case
    size = options["n_best_size"]
    scores = [slow.scores_of(*pair, size) for pair in logits]
    rules = AnswerRules(**options)
    ours = find_answer(question_of(context), windows, scores, rules)
    pieces = [
        ["[CLS]", "what", "is", "[SEP]"]
        + [context[a] for a in window.starts]
        + ["[SEP]"]
        for window in windows
    ]
    try:
        starts, ends = zip(*logits, strict=True)
        original = slow.original_answer(
            context, windows, pieces, starts, ends, True, **options
        )
    except slow.Crash:
        original = None
    return ours, original


def assert_equal(ours, original):
    assert ours.text == original.text
    assert texts(ours) == texts(original)
    for entry, expected in zip(ours.nbest, original.nbest, strict=True):
        assert list(entry) == list(expected)
        assert entry == expected | {
            "probability": pytest.approx(expected["probability"], rel=1e-12)
        }
    assert ours.null_odds == original.null_odds


def test_plain_words_give_the_answers_of_the_original():
    """If a word is a token, its alignment and our slice are the same."""
    rng = random.Random(3)
    kinds = {"crash": 0, "empty": 0, "span": 0, "null": 0}
    for _ in range(500):
        case = random_case(rng)
        ours, original = both_ways(case)
        if original is None:
            kinds["crash"] += 1
            assert ours.nbest[0]["text"] == ""
        elif original.text == "empty":
            kinds["empty"] += 1
            assert (ours.text, texts(ours)) == ("", [""])
        else:
            kinds["span" if original.text else "null"] += 1
            assert_equal(ours, original)
    assert min(kinds.values()) > 20, kinds


VOCAB = (
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "steve", "smith", "'", "s", "cafe"),
    *("was", "there", ",", "in", "u", ".", "##s", "book", "东", "京"),
)


@pytest.mark.parametrize(
    ("context", "first", "last", "text", "originals"),
    [
        # Both split a word between tokens.
        ("Steve Smith's book", 0, 1, "Steve Smith", "Steve Smith"),
        ("was Café's there", 1, 1, "Café", "Café"),
        ("in 东京 there", 1, 2, "东京", "东京"),
        # White space is kept from the context.
        ("Steve  Smith", 0, 1, "Steve  Smith", "Steve Smith"),
        # It gives up if normalization changes the number of letters.
        ("Cafe\u0301's", 0, 0, "Cafe\u0301", "Cafe\u0301's"),
        ("(Steve\u00ad,", 1, 1, "Steve", "(Steve\u00ad,"),
        # It cannot find an unknown token.
        ("in “Łódź”,", 2, 2, "Łódź", "“Łódź”,"),
        # It finds the first "s" of the words, which is the wrong one.
        ("Smith's", 2, 2, "s", "S"),
    ],
)
def test_slices_and_the_alignment_of_the_original(
    context, first, last, text, originals
):
    encoding = SpanEncoding(VOCAB, True, None, 32, max_query_length=4)
    question = Question("q1", "was", context)
    windows = make_windows([question], encoding, with_positions=False)
    starts = np.zeros((1, 32), np.float32)
    ends = np.zeros((1, 32), np.float32)
    starts[0, windows.windows[0].first + first] = 5
    ends[0, windows.windows[0].first + last] = 5
    [rows] = slow.rows_of([question], windows.windows)
    ours, original = slow.compare(
        question, rows, windows, starts, ends, encoding, n_best_size=1
    )
    assert (ours.text, original.text) == (text, originals)


def test_compare_finds_crashes_of_the_original():
    encoding = SpanEncoding(VOCAB, True, None, 32, max_query_length=4)
    question = Question("q1", "was", " ")
    windows = make_windows([question], encoding, with_positions=False)
    logits = np.zeros((0, 32), np.float32)
    ours, original = slow.compare(
        question, [], windows, logits, logits, encoding, with_negative=True
    )
    assert (ours.text, original) == ("", None)


# --------------------------------------------------------- answering questions

LENGTH = 19
ENCODING = SpanEncoding(
    tuple(squad_files.VOCAB),
    True,
    None,
    LENGTH,
    doc_stride=5,
    max_query_length=4,
)
QUESTIONS = squad_files.questions(13, impossible=4)
BLANK = Question("blank", "Where ba?", " \t", where="question 13")
WITH_NEGATIVE = AnswerRules(with_negative=True)


def find_the_word(windows):
    """A perfect model: it finds the token that the question asks for."""
    ids = windows.arrays["input_ids"]
    asked = ids[:, 2:3]  # [CLS] where WORD ? [SEP]
    is_there = (ids == asked) & (np.arange(LENGTH) > 4)
    logits = np.where(is_there, 9.0, -1.0)
    logits[:, 0] = 4.0
    order = np.argsort(-logits, axis=1, kind="stable")[:, :3]
    best = np.take_along_axis(logits, order, axis=1)
    return {
        "start_indexes": order,
        "start_logits": best,
        "end_indexes": order,
        "end_logits": best,
        "null_start_logits": logits[:, 0],
        "null_end_logits": logits[:, 0],
    }


def answered(questions=QUESTIONS, rules=WITH_NEGATIVE, predict=find_the_word):
    return list(answer_questions(questions, ENCODING, predict, rules))


def test_questions_are_answered_in_order(monkeypatch, caplog):
    asked = [*QUESTIONS[:5], BLANK, *QUESTIONS[5:], BLANK]
    expected = answered(asked)
    assert [question for question, _ in expected] == asked
    for question, found in expected:
        assert found.text == "".join(a.text for a in question.answers)
        assert (found.null_odds > 0) == (not question.answers)
    [warning] = [m for m in caplog.messages if "no window" in m]
    assert ": 2; the first: 'blank'" in warning
    for at_a_time in (1, 3, 13):
        monkeypatch.setattr(answers_module, "_WINDOWS_AT_A_TIME", at_a_time)
        assert answered(asked) == expected


def test_few_windows_are_predicted_at_a_time(monkeypatch):
    sizes = []

    def predict(windows):
        sizes.append(len(windows))
        return find_the_word(windows)

    monkeypatch.setattr(answers_module, "_WINDOWS_AT_A_TIME", 2)
    stream = answer_questions(QUESTIONS, ENCODING, predict, WITH_NEGATIVE)
    next(stream)
    assert len(sizes) == 1
    assert len(list(stream)) == 12
    assert len(sizes) > 6
    sizes.clear()
    [(_, found)] = answered([BLANK], predict=predict)
    assert (found.text, sizes) == ("", [])
    assert found.nbest[0]["probability"] == 1.0


def test_the_files_are_the_originals(tmp_path):
    answers = answered()
    assert list(write_answers(answers, str(tmp_path), True)) == answers
    for name, attribute in {
        "predictions": "text",
        "nbest_predictions": "nbest",
        "null_odds": "null_odds",
    }.items():
        content = {q.id: getattr(found, attribute) for q, found in answers}
        text = (tmp_path / f"{name}.json").read_text()
        assert text == json.dumps(content, indent=4) + "\n"
    # Without negatives a stale file is removed.
    answers = answered(rules=AnswerRules())
    assert list(write_answers(answers, str(tmp_path), False)) == answers
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"predictions.json", "nbest_predictions.json"}


def test_a_failure_leaves_no_file(tmp_path):
    def predict(windows):
        kept = find_the_word(windows)
        return {**kept, "start_logits": kept["start_logits"] * np.nan}

    stream = answer_questions(QUESTIONS, ENCODING, predict, WITH_NEGATIVE)
    with pytest.raises(InputError, match="'q0'"):
        list(write_answers(stream, str(tmp_path), True))
    assert not list(tmp_path.iterdir())


# --------------------------------------------------------------- JSON in pieces


def write_object(path, members):
    with json_object_writer(str(path)) as add:
        for key, value in members.items():
            add(key, value)


@pytest.mark.parametrize(
    "members",
    [
        {},
        {"": ""},
        {"a": {}, "b": [], "c": [[]], "d": None, "e": True, "f": -0.0},
        {"}": "{", "\n}": "{\n", "{": "\n}\n", '"': "\\"},
        {"é": "김치 \u2028 🤗", "half": "\ud83e", "tab": "\t\x00\x7f"},
        {"x": 0.1, "y": 1e-320, "z": 1e6, "n": 10**30},
        {
            str(n): [{"text": "1\n2", "probability": 1 / 3}] * n
            for n in range(5)
        },
    ],
)
def test_the_bytes_are_those_of_json_dumps(tmp_path, members):
    path = tmp_path / "sub" / "object.json"
    write_object(path, members)
    text = path.read_bytes().decode("ascii")
    assert text == json.dumps(members, indent=4) + "\n"
    assert [file.name for file in path.parent.iterdir()] == ["object.json"]


def test_a_failure_keeps_the_existing_file(tmp_path):
    path = tmp_path / "object.json"
    write_object(path, {"old": 1})
    before = path.read_bytes()

    class Members(dict):
        def items(self):
            yield "new", 2
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_object(path, Members())
    for value in (math.nan, math.inf, [{"a": -math.inf}]):
        with pytest.raises(ValueError, match="not JSON compliant"):
            write_object(path, {"good": 1.0, "bad": value})
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["object.json"]


def test_members_are_written_at_once(tmp_path):
    with json_object_writer(str(tmp_path / "object.json")) as add:
        add("long", "x" * 100_000)
        [file] = tmp_path.iterdir()
        assert file.name != "object.json"
        assert file.stat().st_size > 90_000


# ---------------------------------------------------------------------- scores


def test_scores_of_a_perfect_model():
    scores = official_scores(answered(), with_negative=True)
    assert scores["eval_exact"] == scores["eval_f1"] == 100.0
    assert scores["eval_best_f1"] == 100.0
    assert (scores["eval_HasAns_total"], scores["eval_NoAns_total"]) == (9, 4)
    assert {*metric_names(with_negative=True)} <= scores.keys()


@pytest.mark.parametrize("n_best_size", [1, 20])
def test_the_best_threshold_is_computed_from_the_spans(n_best_size):
    """Even if all answers are "", because of the threshold of the rules."""
    rules = AnswerRules(
        n_best_size=n_best_size,
        with_negative=True,
        null_score_diff_threshold=-1e9,
    )
    answers = answered(rules=rules)
    assert {found.text for _, found in answers} == {""}
    scores = official_scores(answers, with_negative=True)
    assert scores["eval_exact"] == pytest.approx(100 * 4 / 13)
    assert scores["eval_best_exact"] == 100.0


def test_korean_is_scored_by_characters():
    questions = [q for q in QUESTIONS if q.answers]
    answers = [
        each._replace(
            prediction=dataclasses.replace(
                each.prediction, text=f"{each.prediction.text}xx"
            )
        )
        for each in answered(questions, AnswerRules())
    ]
    words = official_scores(answers, with_negative=False)
    letters = official_scores(answers, with_negative=False, is_korquad=True)
    assert words["eval_f1"] == 0.0
    assert letters["eval_f1"] == pytest.approx(100 * 2 / 3)
    assert {*metric_names(False)} == letters.keys() == words.keys()


def test_questions_to_score_need_answers():
    require_answers(QUESTIONS, with_negative=True)
    with pytest.raises(InputError, match=r"'q0' \(question 0\) has no answer"):
        require_answers(QUESTIONS, with_negative=False)
