"""SQuAD files, and the records of their windows."""

import copy
import dataclasses
import gzip
import json
import pickle
import re

import numpy as np
import pytest
import squad_files

from bert_tf.data import records
from bert_tf.errors import InputError
from bert_tf.tasks import questions as questions_module
from bert_tf.tasks.questions import (
    Answer,
    Question,
    SpanEncoding,
    count_windows,
    make_windows,
    read_questions,
    write_windows,
)

CONTEXT = "Seoul (서울) is the capital. 👍 Busan is not."


def qa(id="q1", text="Seoul", start=0, question="What?", **more):
    answers = [{"text": text, "answer_start": start}]
    return {"id": id, "question": question, "answers": answers, **more}


def squad(*qas, context=CONTEXT):
    paragraphs = [{"context": context, "qas": list(qas)}]
    article = {"title": "T", "paragraphs": paragraphs}
    return {"version": "1.1", "data": [article]}


@pytest.fixture
def write(tmp_path):
    def write(content):
        path = tmp_path / "squad.json"
        if not isinstance(content, str):
            content = json.dumps(content)
        path.write_text(content, encoding="utf-8")
        return str(path)

    return write


def read(path, with_negative=False, needs_answers=True, **options):
    return read_questions(
        path,
        with_negative=with_negative,
        needs_answers=needs_answers,
        **options,
    )


def ids(questions):
    return [question.id for question in questions]


# ----------------------------------------------------------------- SQuAD files


def test_reads_questions_and_their_places(write, warnings):
    content = squad(qa(), qa("q2", "Busan", CONTEXT.index("Busan")))
    content["data"].append(squad(qa(7, "x", 0), context="x")["data"][0])
    path = write("\ufeff" + json.dumps(content))
    expected = [
        Question(name, "What?", context, (answer,), False, f"{path}: {place}")
        for name, context, answer, place in [
            (
                "q1",
                CONTEXT,
                Answer("Seoul", 0),
                "article 1, paragraph 1, question 1",
            ),
            (
                "q2",
                CONTEXT,
                Answer("Busan", 29),
                "article 1, paragraph 1, question 2",
            ),
            ("7", "x", Answer("x", 0), "article 2, paragraph 1, question 1"),
        ]
    ]
    assert read(path) == expected
    assert read(path, needs_answers=False) == expected
    assert pickle.loads(pickle.dumps(expected)) == expected
    with open(f"{path}.gz", "wb") as file:
        file.write(gzip.compress(json.dumps(content).encode()))
    assert ids(read(f"{path}.gz")) == ids(expected)
    assert not warnings


def test_impossible_questions_need_the_option(write, warnings):
    plausible = [{"text": "Busan", "answer_start": 29}]
    nothing = {"id": "q1", "question": "?", "answers": []}
    path = write(
        squad(
            {**nothing, "is_impossible": True, "plausible_answers": plausible},
            qa("q2", is_impossible=False),
            qa("q3", is_impossible=True),
            qa("q4"),
        )
    )
    questions = read(path, with_negative=True)
    assert [q.is_impossible for q in questions] == [True, False, True, False]
    assert [len(q.answers) for q in questions] == [0, 1, 1, 1]
    assert not warnings

    questions = read(path)
    assert ids(questions) == ["q2", "q3", "q4"]
    assert not any(q.is_impossible for q in questions)
    ignored, skipped = warnings
    assert re.search(
        "is_impossible, which is ignored .*: 2; the first", ignored
    )
    assert re.search("--version_2_with_negative.*'q1'", skipped)
    assert ids(read(path, needs_answers=False)) == ["q1", "q2", "q3", "q4"]
    assert ids(read(write(squad(qa(is_impossible="no"))))) == ["q1"]


def test_reads_korquad(write):
    """KorQuAD 1.0: the same layout, ids with dashes, composed Hangul."""
    context = "대한민국의 수도는 서울특별시이다."
    question = qa("6566495-0-0", "서울특별시", 10)
    [read_back] = read(write(squad(question, context=context)))
    [answer] = read_back.answers
    assert read_back.id == "6566495-0-0"
    assert context[answer.start :].startswith(answer.text)


def test_prediction_needs_no_answers(write, warnings):
    path = write(
        squad(
            {"id": "q1", "question": "?"},
            {"id": "q2", "question": "?", "answers": []},
            {"id": "q3", "question": "?", "answers": [{"text": "Seoul"}]},
            qa("q4", "not there", 10_000),
        )
    )
    questions = read(path, needs_answers=False, strict=True)
    assert [q.answers for q in questions] == [
        (),
        (),
        (Answer("Seoul", -1),),
        (Answer("not there", 10_000),),
    ]
    assert not warnings


@pytest.mark.parametrize(
    "answers",
    [None, {"text": ["a"], "answer_start": [0]}, [{"answer_start": None}]],
)
def test_answers_can_be_ignored(write, answers):
    path = write(squad({**qa("q1"), "answers": answers}))
    [question] = read(path, needs_answers=False, reads_answers=False)
    assert question.answers == ()
    with pytest.raises(InputError, match="answer"):
        read(path, needs_answers=False)


SKIPPED = {
    "wrong start": (qa(start=1), "'Seoul'.*'eoul ' at answer_start 1"),
    "beyond the end": (qa(start=10_000), "'Seoul'.*'' at answer_start 10000"),
    "before the start": (qa(text="not", start=-4), "'not'.*''.*-4"),
    "in UTF-16": (qa(text="Busan", start=30), "'Busan'.*'usan '.*30"),
    "no answers": ({"id": "q1", "question": "?", "answers": []}, "no answer"),
    "no key": ({"id": "q1", "question": "?"}, "no answer"),
    "blank answer": (qa(text=" ", start=5), "no answer"),
}


@pytest.mark.parametrize("case", SKIPPED)
def test_training_skips_or_refuses_flawed_questions(write, warnings, case):
    entry, message = SKIPPED[case]
    path = write(squad(entry, {**entry, "id": "q2"}, qa("good")))
    assert ids(read(path)) == ["good"]
    [line] = warnings
    place = r"'q1' \(.*squad\.json: article 1, paragraph 1, question 1\)"
    assert re.search(f": 2; the first: {place}: .*{message}", line)
    assert ids(read(path, needs_answers=False, strict=True)) == [
        *("q1", "q2", "good")
    ]
    with pytest.raises(InputError, match=f"question 1: .*'q1'.*{message}"):
        read(path, strict=True)
    assert len(warnings) == 1
    with pytest.raises(InputError, match=r"no questions to .* all 2 were skip"):
        read(write(squad(entry, {**entry, "id": "q2"})))


@pytest.mark.parametrize(
    ("context", "flags"), [("", {}), (" \n", {}), ("", {"is_impossible": True})]
)
def test_an_empty_context(write, warnings, context, flags):
    content = squad(qa("q1", "", **flags), context=context)
    content["data"] += squad(qa("q2"))["data"]
    path = write(content)
    assert ids(read(path, with_negative=True)) == ["q2"]
    options = {"with_negative": True, "needs_answers": False}
    assert ids(read(path, **options)) == ["q1", "q2"]
    assert ["empty context" in line for line in warnings] == [True, True]
    with pytest.raises(InputError, match=r"'q1'.* empty context"):
        read(path, strict=True)


def test_the_first_of_several_answers_is_used(write, warnings):
    two = [{"text": "Seoul", "answer_start": 0}]
    two.append({"text": "capital", "answer_start": 18})
    path = write(
        squad(
            {**qa("q1"), "answers": two[:1] * 2},
            {**qa("q2"), "answers": two},
            {**qa("q3"), "answers": two, "is_impossible": True},
        )
    )
    questions = read(path, with_negative=True)
    assert ids(questions) == ["q1", "q2", "q3"]
    assert [a.text for a in questions[1].answers] == ["Seoul", "capital"]
    [line] = warnings
    assert re.search("several answers, of which the first.*: 1;.*'q2'", line)
    read(path, needs_answers=False, with_negative=True)
    assert len(warnings) == 1


def test_warns_of_empty_parts(write, warnings):
    content = squad(qa("q1", question=" "))
    content["data"].append({"paragraphs": []})
    content["data"] += squad()["data"] * 2
    assert ids(read(write(content))) == ["q1"]
    counts = [int(re.search(r": (\d+); the first", w)[1]) for w in warnings]
    assert counts == [1, 1, 2]
    assert [line.rpartition("squad.json: ")[2] for line in warnings] == [
        "article 1, paragraph 1, question 1)",
        "article 2",
        "article 3, paragraph 1",
    ]


def set_question(**values):
    return lambda c, a, p: p["qas"][1].update(values)


# A change of (content, article, paragraph) and the message.
BROKEN = [
    (
        lambda c, a, p: a.pop("paragraphs"),
        "article 1: expected the key 'paragraphs'; found 'title'",
    ),
    (
        lambda c, a, p: p.pop("context"),
        "article 1, paragraph 1: .* 'context'; found 'qas'",
    ),
    (lambda c, a, p: p.pop("qas"), "paragraph 1: .* 'qas'; found 'context'"),
    (
        lambda c, a, p: p["qas"][1].pop("id"),
        "paragraph 1, question 2: .* 'id'; found 'question'",
    ),
    (lambda c, a, p: p["qas"][1].pop("question"), "question 2: .* 'question'"),
    (lambda c, a, p: p["qas"].insert(0, {}), "question 1: .*found no keys"),
    (
        set_question(answers=[{"answer_start": 3}]),
        "question 2, answer 1: .* 'text'; found 'answer_start'",
    ),
    (set_question(answers=[{"text": "a"}]), "answer 1: .* 'answer_start'"),
    (
        lambda c, a, p: c["data"].insert(0, "Seoul"),
        "article 1: .* a JSON object; found 'Seoul'",
    ),
    (
        lambda c, a, p: a.update(paragraphs=[None]),
        "paragraph 1: .*; found None",
    ),
    (lambda c, a, p: p["qas"].append(7), "question 3: .* object; found 7"),
    (set_question(answers=["Seoul"]), "answer 1: .* object; found 'Seoul'"),
    (
        lambda c, a, p: a.update(paragraphs={}),
        "article 1: 'paragraphs' must be a list; got {}",
    ),
    (lambda c, a, p: p.update(context=None), "'context' must be a string; got"),
    (lambda c, a, p: p.update(qas="q"), "'qas' must be a list; got 'q'"),
    (set_question(id=True), "question 2: 'id' must be a string; got True"),
    (set_question(question=["?"]), "'question' must be a string"),
    (
        set_question(answers={"text": ["a"] * 99}),
        r"'answers' must be a list.*\.\.\.",
    ),
    (set_question(answers=[{"text": 5, "answer_start": 0}]), "'text' must be"),
    *[
        (
            set_question(answers=[{"text": "S", "answer_start": start}]),
            f"'answer_start' must be a whole number; got {start!r}",
        )
        for start in ("0", 0.0, False)
    ],
    (set_question(is_impossible="false"), "must be true or false; got 'false'"),
    (set_question(id="q1"), "question 2: the id 'q1' .* used at .*question 1"),
    (lambda c, a, p: c.update(data={}), "json: 'data' must be a list; got {}"),
    (
        lambda c, a, p: [c.clear(), c.update(model="bert", layers=12)],
        "json: .* 'data'; found 'model' and 'layers'",
    ),
    (
        lambda c, a, p: c.update(data=[]),
        r"json: .* no questions to train on\.$",
    ),
    (lambda c, a, p: p.update(qas=[]), r"json: .* no questions to train on\.$"),
]


@pytest.mark.parametrize(("change", "message"), BROKEN)
def test_errors_name_the_place(write, change, message):
    content = copy.deepcopy(squad(qa("q1"), qa("q2", is_impossible=True)))
    article = content["data"][0]
    change(content, article, article["paragraphs"][0])
    with pytest.raises(InputError, match=message) as caught:
        read(write(content), with_negative=True)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"data": [', r"squad\.json:1: invalid JSON"),
        ('{"data": []}\n{"data": []}', r"squad\.json:2: invalid JSON"),
        ("[]", "SQuAD.*a list"),
        ('{"data": "squad"}', "'data' must be a list; got 'squad'"),
    ],
)
def test_files_that_are_not_squad(write, content, message):
    with pytest.raises(InputError, match=message):
        read(write(content))


def test_messages_shorten_long_texts(write):
    path = write(squad(qa(text="x" * 5000), context="y" * 9000))
    with pytest.raises(InputError) as caught:
        read(path, strict=True)
    assert len(str(caught.value)) < 500


def test_real_files(shared_data, warnings):
    counts = {}
    for name in ("dev-v1.1", "train-v1.1-subset", "dev-v2.0-cs224n"):
        path = str(shared_data / "squad" / f"{name}.json")
        questions = read(
            path, with_negative="v2" in name, needs_answers="train" in name
        )
        impossible = sum(q.is_impossible for q in questions)
        counts[name] = len(questions), impossible
    assert counts == {
        "dev-v1.1": (10570, 0),
        "train-v1.1-subset": (11877, 0),
        "dev-v2.0-cs224n": (6078, 3168),
    }
    assert not warnings


# --------------------------------------------------------------------- records

QUESTIONS = squad_files.questions(11)
ENCODING = SpanEncoding(
    tuple(squad_files.VOCAB), True, None, 19, doc_stride=5, max_query_length=4
)


@pytest.fixture
def write_records(tmp_path):
    source = tmp_path / "train.json"
    source.write_text("the source")

    def write(questions=QUESTIONS, **changes):
        encoding = dataclasses.replace(ENCODING, **changes)
        sources = [str(source)]
        return write_windows(
            str(write.path), questions, encoding, sources=sources
        )

    write.path = tmp_path / "train.tf_record"
    return write


@pytest.mark.parametrize("windows_per_part", [1, 3, 1000])
def test_records_do_not_depend_on_parts(
    write_records, monkeypatch, caplog, windows_per_part
):
    monkeypatch.setattr(questions_module, "_WINDOWS_PER_PART", windows_per_part)
    assert write_records()
    made = make_windows(QUESTIONS, ENCODING, with_positions=True)
    assert len(made.windows) > len(QUESTIONS)
    unique_ids = made.batch["unique_ids"]
    np.testing.assert_array_equal(
        unique_ids, 10**9 + np.arange(len(unique_ids))
    )
    expected = records.encode_batch(ENCODING.schema, made.batch)
    assert write_records.path.read_bytes() == records.frame(expected)

    asked = [dataclasses.replace(QUESTIONS[0], answers=()), *QUESTIONS[1:]]
    made = make_windows(asked, ENCODING, with_positions=True)
    assert count_windows(asked, ENCODING) == len(made.windows)
    [warning] = [m for m in caplog.messages if "without an answer" in m]
    assert "'q0' (question 0)" in warning


@pytest.mark.parametrize(
    "changes",
    [
        {"questions": QUESTIONS[::-1]},
        {"questions": [dataclasses.replace(QUESTIONS[0], is_impossible=True)]},
        {"questions": [dataclasses.replace(QUESTIONS[0], question="?")]},
        {"doc_stride": 6},
        {"max_query_length": 3},
        {"do_lower_case": False},
    ],
)
def test_changes_rewrite_the_records(write_records, changes):
    assert write_records()
    moved = [dataclasses.replace(q, id="x", where="y") for q in QUESTIONS]
    assert not write_records(moved)
    assert write_records(**changes)
    assert not write_records(**changes)
    assert write_records()
