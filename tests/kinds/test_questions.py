"""Questions of SQuAD files, and the records that hold their windows."""

import copy
import dataclasses
import gzip
import json
import re

import numpy as np
import pytest
import squad_files

from bert_tf.data import records
from bert_tf.errors import InputError
from bert_tf.kinds.spans.squad_files import (
    Answer,
    Question,
    SpanEncoding,
    make_windows,
    read_questions,
)

CONTEXT = "Seoul (서울) is the capital. 👍 Busan is not."
PLACE = "article 1, paragraph 1, question 1"


def qa(id="q1", text="Seoul", start=0, question="What?", **more):
    answers = [{"text": text, "answer_start": start}]
    return {"id": id, "question": question, "answers": answers, **more}


def squad(*qas, context=CONTEXT):
    paragraphs = [{"context": context, "qas": list(qas)}]
    article = {"title": "T", "paragraphs": paragraphs}
    return {"version": "1.1", "data": [article]}


@pytest.fixture
def read(write):
    def read(content, with_negative=False, needs_answers=True, **options):
        if not isinstance(content, (str, bytes)):
            content = json.dumps(content)
        name = "squad.json.gz" if isinstance(content, bytes) else "squad.json"
        return read_questions(
            write(content, name),
            with_negative=with_negative,
            needs_answers=needs_answers,
            **options,
        )

    return read


def ids(questions):
    return [question.id for question in questions]


def test_reads_questions_and_their_places(read, warnings, tmp_path):
    content = squad(qa(), qa("1-0-0", "Busan", CONTEXT.index("Busan")))
    content["data"].append(squad(qa(7, "x", 0), context="x")["data"][0])
    path = tmp_path / "squad.json"
    first, second = "article 1, paragraph 1", "article 2, paragraph 1"
    expected = [
        Question(name, "What?", context, (answer,), False, f"{path}: {place}")
        for name, context, answer, place in [
            ("q1", CONTEXT, Answer("Seoul", 0), f"{first}, question 1"),
            ("1-0-0", CONTEXT, Answer("Busan", 29), f"{first}, question 2"),
            ("7", "x", Answer("x", 0), f"{second}, question 1"),
        ]
    ]
    assert read("\ufeff" + json.dumps(content)) == expected
    assert read(content, needs_answers=False) == expected
    compressed = gzip.compress(json.dumps(content).encode())
    assert ids(read(compressed)) == ids(expected)
    assert not warnings


def test_impossible_questions_need_the_option(read, warnings):
    nothing = {"id": "q1", "question": "?", "answers": []}
    content = squad(nothing | {"is_impossible": True}, qa("q2"))
    content["data"] += squad(qa("q3", is_impossible=True))["data"]
    questions = read(content, with_negative=True)
    assert [q.is_impossible for q in questions] == [True, False, True]
    assert [len(q.answers) for q in questions] == [0, 1, 1]
    assert not warnings
    questions = read(content)
    assert ids(questions) == ["q2", "q3"]
    assert not any(q.is_impossible for q in questions)
    [skipped] = warnings
    assert re.search("`version_2_with_negative`.*'q1'", skipped)


def test_prediction_needs_no_answers(read, warnings):
    content = squad(
        {"id": "q1", "question": "?"},
        {"id": "q2", "question": "?", "answers": [{"text": "Seoul"}]},
        qa("q3", "not there", 10_000),
    )
    questions = read(content, needs_answers=False)
    assert [q.answers for q in questions] == [
        (),
        (Answer("Seoul", -1),),
        (Answer("not there", 10_000),),
    ]
    assert not warnings


@pytest.mark.parametrize(
    "entry",
    [
        qa(start=10_000),
        qa(text="not", start=-4),
        # As if counted in UTF-16.
        qa(text="Busan", start=30),
        {"id": "q1", "question": "?"},
        qa(text=" ", start=5),
        qa(text=""),
    ],
)
def test_training_skips_flawed_questions(read, warnings, entry):
    flawed = squad(entry, {**entry, "id": "q2"})
    good = {"data": flawed["data"] + squad(qa("good"))["data"]}
    options = {"with_negative": "is_impossible" in entry}
    assert ids(read(good, **options)) == ["good"]
    place = rf"'q1' \(.*squad\.json: {PLACE}\)"
    [line] = [line for line in warnings if "skipped" in line]
    assert re.search(f": 2; the first: {place}", line)
    found = read(good, needs_answers=False, **options)
    assert ids(found) == ["q1", "q2", "good"]
    with pytest.raises(InputError, match="has no questions to train on"):
        read(flawed, **options)


def test_the_first_of_several_answers_is_used(read, warnings):
    two = [{"text": "Seoul", "answer_start": 0}]
    two.append({"text": "capital", "answer_start": 18})
    content = squad(
        qa("q1", question=" "),
        {**qa("q2"), "answers": two},
        {**qa("q3"), "answers": two, "is_impossible": True},
    )
    content["data"].append({"paragraphs": []})
    questions = read(content, with_negative=True)
    assert ids(questions) == ["q1", "q2", "q3"]
    assert [a.text for a in questions[1].answers] == ["Seoul", "capital"]
    assert not warnings


def with_question(**values):
    return lambda c, a, p: p["qas"][1].update(values)


# A change of (content, article, paragraph), and the message.
BROKEN = [
    (
        lambda c, a, p: a.pop("paragraphs"),
        "article 1: expected the key 'paragraphs' with a list; found {'title'",
    ),
    (
        with_question(answers=[{"answer_start": 3}]),
        "question 2, answer 1: .* 'text' .*found {'answer_start'",
    ),
    (
        lambda c, a, p: c["data"].insert(0, "Seoul"),
        "article 1: .* found 'Seoul'",
    ),
    (with_question(is_impossible="no"), "with true or false; found 'no'"),
    (with_question(id="q1"), "question 2: the id 'q1' .* used at .*question 1"),
    (lambda c, a, p: p.update(qas=[]), "json: .* no questions to train on"),
]


@pytest.mark.parametrize(("change", "message"), BROKEN)
def test_errors_name_the_place(read, change, message):
    content = copy.deepcopy(squad(qa("q1"), qa("q2", is_impossible=True)))
    article = content["data"][0]
    change(content, article, article["paragraphs"][0])
    with pytest.raises(InputError, match=message):
        read(content, with_negative=True)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"data": []}\n{"data": []}', r"squad\.json:2: invalid JSON"),
        ({"model": "bert"}, "json: .* 'data' .* found {'model'"),
    ],
)
def test_files_that_are_not_squad(read, content, message):
    with pytest.raises(InputError, match=message):
        read(content)


def test_real_files(shared_data, warnings):
    counts = {}
    for name in ("dev-v1.1", "train-v1.1-subset", "dev-v2.0-cs224n"):
        questions = read_questions(
            str(shared_data / "squad" / f"{name}.json"),
            with_negative="v2" in name,
            needs_answers="train" in name,
        )
        impossible = sum(q.is_impossible for q in questions)
        counts[name] = len(questions), impossible
    assert counts == {
        "dev-v1.1": (10570, 0),
        "train-v1.1-subset": (11877, 0),
        "dev-v2.0-cs224n": (6078, 3168),
    }
    assert not warnings


QUESTIONS = squad_files.questions(11)
ENCODING = SpanEncoding(tuple(squad_files.VOCAB), True, None, 19, 5, 4)


def test_records_do_not_depend_on_parts(tmp_path, monkeypatch, warnings):
    monkeypatch.setattr(SpanEncoding, "rows_per_part", 3)
    path = tmp_path / "train.tf_record"
    assert ENCODING.write(str(path), QUESTIONS)
    made = make_windows(QUESTIONS, ENCODING, with_positions=True)
    unique_ids = 10**9 + np.arange(made.counts.sum())
    np.testing.assert_array_equal(made.batch["unique_ids"], unique_ids)
    expected = records.encode_batch(ENCODING.schema, made.batch)
    assert path.read_bytes() == records.frame(expected)
    asked = [dataclasses.replace(QUESTIONS[0], answers=()), *QUESTIONS[1:]]
    assert ENCODING.count_rows(asked) == made.counts[1:].sum()
    [warning] = warnings
    assert "without an answer" in warning
    assert "'q0' (question 0)" in warning


def test_changes_rewrite_the_records(tmp_path):
    path = str(tmp_path / "train.tf_record")
    first, *others = QUESTIONS
    for change in (
        {"is_impossible": True},
        {"question": "?"},
        {"answers": first.answers * 2},
        {"context": "bada"},
    ):
        changed = [dataclasses.replace(first, **change), *others]
        assert ENCODING.write(path, changed)
        moved = [dataclasses.replace(q, id="x", where="y") for q in changed]
        assert not ENCODING.write(path, moved)
    assert dataclasses.replace(ENCODING, doc_stride=6).write(path, changed)
