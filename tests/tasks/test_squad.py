import copy
import json
import re

import pytest
from absl import logging

from bert_tf.errors import InputError
from bert_tf.tasks.questions import Answer, Question
from bert_tf.tasks.squad import read_questions

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
    def write(content, name="squad.json"):
        path = tmp_path / name
        if not isinstance(content, str):
            content = json.dumps(content)
        path.write_text(content, encoding="utf-8")
        return str(path)

    return write


@pytest.fixture
def warnings(monkeypatch):
    told = []
    monkeypatch.setattr(logging, "warning", lambda m, *a: told.append(m % a))
    return told


def read(path, with_negative=False, needs_answers=True, **arguments):
    return read_questions(
        path,
        with_negative=with_negative,
        needs_answers=needs_answers,
        **arguments,
    )


def ids(reading):
    return [question.id for question in reading.questions]


# ----------------------------------------------------------------------- files


def test_questions_and_their_places(write, warnings):
    content = squad(qa(), qa("q2", "Busan", CONTEXT.index("Busan")))
    content["data"].append(squad(qa("q3", "x", 0), context="x")["data"][0])
    path = write(content)
    for needs_answers in (True, False):
        questions, faults = read(path, needs_answers=needs_answers)
        assert questions == [
            Question(
                "q1",
                "What?",
                CONTEXT,
                (Answer("Seoul", 0),),
                False,
                f"{path}: article 1, paragraph 1, question 1",
            ),
            Question(
                "q2",
                "What?",
                CONTEXT,
                (Answer("Busan", 29),),
                False,
                f"{path}: article 1, paragraph 1, question 2",
            ),
            Question(
                "q3",
                "What?",
                "x",
                (Answer("x", 0),),
                False,
                f"{path}: article 2, paragraph 1, question 1",
            ),
        ]
        assert not faults.counts
    assert not warnings


def test_impossible_questions_count_with_negatives_only(write, warnings):
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
    questions, faults = read(path, with_negative=True)
    assert [q.is_impossible for q in questions] == [True, False, True, False]
    assert [len(q.answers) for q in questions] == [0, 1, 1, 1]
    assert not faults.counts
    assert not warnings

    reading = read(path)
    assert ids(reading) == ["q2", "q3", "q4"]
    assert not any(q.is_impossible for q in reading.questions)
    ignored, left_out = warnings
    assert "said to be impossible" in ignored
    assert ": 2; the first" in ignored
    assert "--version_2_with_negative" in left_out
    assert "'q1'" in left_out
    assert ids(read(path, needs_answers=False)) == ["q1", "q2", "q3", "q4"]


def test_korquad(write):
    """KorQuAD 1.0: the same layout, ids with dashes, composed Hangul."""
    context = "대한민국의 수도는 서울특별시이다."
    path = write(
        {
            "version": "KorQuAD_v1.0_train",
            "data": squad(qa("6566495-0-0", "서울특별시", 10), context=context)[
                "data"
            ],
        }
    )
    [question], _ = read(path)
    [answer] = question.answers
    assert question.id == "6566495-0-0"
    assert context[answer.start :].startswith(answer.text)


def test_numbers_are_ids_as_well(write):
    content = squad(qa(7), qa("8"))
    assert ids(read(write(content))) == ["7", "8"]
    with pytest.raises(InputError, match="'7' at"):
        read(write(squad(qa(7), qa("7"))))


def test_a_byte_order_mark_and_gzip(write, tmp_path):
    import gzip

    assert ids(read(write("\ufeff" + json.dumps(squad(qa()))))) == ["q1"]
    path = tmp_path / "squad.json.gz"
    path.write_bytes(gzip.compress(json.dumps(squad(qa())).encode()))
    assert ids(read(str(path))) == ["q1"]


def test_prediction_asks_for_no_more_than_it_needs(write, warnings):
    path = write(
        squad(
            {"id": "q1", "question": "?"},
            {"id": "q2", "question": "?", "answers": []},
            {"id": "q3", "question": "?", "answers": [{"text": "Seoul"}]},
            qa("q4", "not there", 10_000),
        )
    )
    questions, faults = read(path, needs_answers=False, strict=True)
    assert [q.answers for q in questions] == [
        (),
        (),
        (Answer("Seoul", -1),),
        (Answer("not there", 10_000),),
    ]
    assert not faults.counts
    assert not warnings


# -------------------------------------------------------- what is counted, told

LEFT_OUT = {
    "answer_start": (qa(start=1), "'Seoul'.*1.*'eoul '"),
    "beyond the end": (qa(start=10_000), "'Seoul'.*10000.*''"),
    "before the start": (qa(text="not", start=-4), "'not'.*-4.*''"),
    "in UTF-16": (qa(text="Busan", start=30), "'Busan'.*30.*'usan '"),
    "no answers": ({"id": "q1", "question": "?", "answers": []}, "no answer"),
    "no key": ({"id": "q1", "question": "?"}, "no answer"),
    "empty answer": (qa(text=""), "no answer"),
    "blank answer": (qa(text=" ", start=5), "no answer"),
}


@pytest.mark.parametrize("case", LEFT_OUT)
def test_left_out_of_training_and_told(write, warnings, case):
    entry, message = LEFT_OUT[case]
    path = write(squad(entry, {**entry, "id": "q2"}, qa("good")))
    reading = read(path)
    assert ids(reading) == ["good"]
    assert list(reading.faults.counts.values()) == [2]
    assert len(warnings) == 1
    place = r"'q1' \(.*squad\.json: article 1, paragraph 1, question 1\)"
    assert re.search(f": 2; the first: {place}: .*{message}", warnings[0])
    assert ids(read(path, needs_answers=False)) == ["q1", "q2", "good"]
    assert len(warnings) == 1


@pytest.mark.parametrize("case", LEFT_OUT)
def test_strict_stops_instead(write, warnings, case):
    entry, message = LEFT_OUT[case]
    path = write(squad(qa("good"), entry))
    with pytest.raises(InputError, match=rf"{message}.*'q1' \(.*question 2\)"):
        read(path, strict=True)
    assert not warnings
    assert len(read(path, needs_answers=False, strict=True).questions) == 2


@pytest.mark.parametrize("context", ["", " \n"])
def test_an_empty_context(write, warnings, context):
    content = squad(qa("q1", ""), context=context)
    content["data"] += squad(qa("q2"))["data"]
    path = write(content)
    assert ids(read(path)) == ["q2"]
    assert ids(read(path, needs_answers=False)) == ["q1", "q2"]
    assert ["empty context" in line for line in warnings] == [True, True]
    with pytest.raises(InputError, match=r"an empty context.*'q1'"):
        read(path, strict=True)


def test_impossible_in_an_empty_context(write, warnings):
    content = squad(qa("q1", "", is_impossible=True), context="")
    content["data"] += squad(qa("q2"))["data"]
    assert ids(read(write(content), with_negative=True)) == ["q2"]
    assert "empty context" in warnings[0]


def test_several_answers(write, warnings):
    two = [{"text": "Seoul", "answer_start": 0}]
    two.append({"text": "capital", "answer_start": 18})
    path = write(
        squad(
            {**qa("q1"), "answers": two[:1] * 2},
            {**qa("q2"), "answers": two},
            {**qa("q3"), "answers": two, "is_impossible": True},
        )
    )
    reading = read(path, with_negative=True)
    assert ids(reading) == ["q1", "q2", "q3"]
    assert [a.text for a in reading.questions[1].answers] == [
        "Seoul",
        "capital",
    ]
    [line] = warnings
    assert "several answers, of which the first is used: 1;" in line
    assert "'q2'" in line
    read(path, needs_answers=False, with_negative=True)
    assert len(warnings) == 1


@pytest.mark.parametrize(
    "answers",
    [None, {"text": ["a"], "answer_start": [0]}, [{"answer_start": None}]],
)
def test_answers_that_are_of_no_use_are_not_looked_at(write, answers):
    path = write(squad({**qa("q1"), "answers": answers}))
    reading = read(path, needs_answers=False, reads_answers=False)
    assert reading.questions[0].answers == ()
    with pytest.raises(InputError, match="answer"):
        read(path, needs_answers=False)


def test_nothing_inside_and_empty_questions_are_told(write, warnings):
    content = squad(qa("q1", question=" "))
    content["data"].append({"paragraphs": []})
    content["data"] += squad()["data"] * 2
    reading = read(write(content))
    assert ids(reading) == ["q1"]
    assert list(reading.faults.counts.values()) == [1, 1, 2]
    assert [line.rpartition("squad.json: ")[2] for line in warnings] == [
        "article 1, paragraph 1, question 1)",
        "article 2",
        "article 3, paragraph 1",
    ]


# -------------------------------------------------------------------- bad input


def changed(change):
    content = copy.deepcopy(squad(qa("q1"), qa("q2", is_impossible=True)))
    article = content["data"][0]
    change(content, article, article["paragraphs"][0])
    return content


def set_question(**values):
    return lambda c, a, p: p["qas"][1].update(values)


BROKEN = {
    "paragraphs missing": (
        lambda c, a, p: a.pop("paragraphs"),
        "'paragraphs' in every article.*the keys 'title' at .*: article 1$",
    ),
    "context missing": (
        lambda c, a, p: p.pop("context"),
        "'context' in every paragraph.*'qas' at .*: article 1, paragraph 1$",
    ),
    "qas missing": (
        lambda c, a, p: p.pop("qas"),
        "'qas' in every paragraph.*'context' at .*article 1, paragraph 1$",
    ),
    "id missing": (
        lambda c, a, p: p["qas"][1].pop("id"),
        "'id' in every question.*'question'.*paragraph 1, question 2$",
    ),
    "question missing": (
        lambda c, a, p: p["qas"][1].pop("question"),
        "'question' in every question.*'id'.*paragraph 1, question 2$",
    ),
    "no keys": (
        lambda c, a, p: p["qas"].insert(0, {}),
        "without keys at .*paragraph 1, question 1$",
    ),
    "text missing": (
        set_question(answers=[{"answer_start": 3}]),
        "'text' in every answer.*'answer_start' at .*question 2, answer 1$",
    ),
    "answer_start missing": (
        set_question(answers=[{"text": "a"}]),
        "'answer_start' in every answer.*'text' at .*question 2, answer 1$",
    ),
    "article": (
        lambda c, a, p: c["data"].insert(0, "Seoul"),
        'every article to be an object.*"Seoul" at .*article 1$',
    ),
    "paragraph": (
        lambda c, a, p: a.update(paragraphs=[None]),
        "every paragraph to be an object.*null at .*paragraph 1$",
    ),
    "question": (
        lambda c, a, p: p["qas"].append(7),
        "every question to be an object.*7 at .*question 3$",
    ),
    "answer": (
        set_question(answers=["Seoul"]),
        'every answer to be an object.*"Seoul" at .*answer 1$',
    ),
    "paragraphs": (
        lambda c, a, p: a.update(paragraphs={}),
        r"'paragraphs' to be a list.*{} at .*article 1$",
    ),
    "context": (
        lambda c, a, p: p.update(context=None),
        "'context' to be a string.*null at .*paragraph 1$",
    ),
    "qas": (
        lambda c, a, p: p.update(qas="q"),
        "'qas' to be a list.*\"q\" at .*paragraph 1$",
    ),
    "id": (set_question(id=True), "'id' to be a string.*true at .*question 2$"),
    "question text": (
        set_question(question=["What?"]),
        "'question' to be a string.*question 2$",
    ),
    "answers": (
        set_question(answers={"text": ["a"] * 99, "answer_start": [0]}),
        r"'answers' to be a list.*\.\.\. at .*question 2$",
    ),
    "answer text": (
        set_question(answers=[{"text": 5, "answer_start": 0}]),
        "'text' to be a string.*5 at .*answer 1$",
    ),
    "answer_start": (
        set_question(answers=[{"text": "S", "answer_start": "0"}]),
        "'answer_start' to be a whole number.*\"0\" at .*answer 1$",
    ),
    "answer_start as a fraction": (
        set_question(answers=[{"text": "S", "answer_start": 0.0}]),
        r"'answer_start' to be a whole number.*0\.0 at .*answer 1$",
    ),
    "answer_start as a truth": (
        set_question(answers=[{"text": "S", "answer_start": False}]),
        "'answer_start' to be a whole number.*false at .*answer 1$",
    ),
    "is_impossible": (
        set_question(is_impossible="false"),
        "'is_impossible' to be true or false.*\"false\" at .*question 2$",
    ),
    "duplicate id": (
        set_question(id="q1"),
        r"'q1' at .*paragraph 1, question 1 and at .*question 2$",
    ),
    "data": (
        lambda c, a, p: c.update(data={}),
        "SQuAD.*'data'. Received: an object as 'data' in ",
    ),
    "other JSON": (
        lambda c, a, p: [c.clear(), c.update(model="bert", layers=12)],
        "SQuAD.*'data'.*the keys 'model', 'layers' in .*squad.json$",
    ),
    "no article": (
        lambda c, a, p: c.update(data=[]),
        r"questions to train on in .*squad\.json. Received: none$",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_one_line_says_what_is_wrong(write, case):
    change, message = BROKEN[case]
    with pytest.raises(InputError, match=message) as caught:
        read(write(changed(change)), with_negative=True)
    assert "\n" not in str(caught.value)
    assert "Received: " in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"data": [', r"JSON.*squad\.json:1"),
        ("[]", "'data'. Received: a list"),
        ("null", "'data'. Received: null"),
        ('"squad"', "'data'. Received: a string"),
        ('{"data": "squad"}', "'data'. Received: a string as 'data'"),
        ('{"data": []}\n{"data": []}', r"JSON.*squad\.json:2"),
    ],
)
def test_not_json(write, content, message):
    with pytest.raises(InputError, match=message):
        read(write(content))


def test_no_question_is_left(write, warnings):
    path = write(squad(qa(start=3)))
    with pytest.raises(InputError, match="none but those left out"):
        read(path)
    assert len(warnings) == 1


@pytest.mark.parametrize("paragraphs", [[], [{"context": CONTEXT, "qas": []}]])
def test_a_file_without_questions_leaves_none_out(write, paragraphs):
    path = write({"data": [{"paragraphs": paragraphs}]})
    with pytest.raises(InputError, match=r"squad\.json\. Received: none$"):
        read(path)


def test_is_impossible_is_not_looked_at_without_negatives(write):
    assert ids(read(write(squad(qa(is_impossible="no"))))) == ["q1"]


def test_a_message_shows_no_whole_texts(write):
    long = "x" * 5000
    path = write(squad(qa(text=long), context="y" * 9000))
    with pytest.raises(InputError) as caught:
        read(path, strict=True)
    assert len(str(caught.value)) < 500


def test_real_files(shared_data, warnings):
    counts = {}
    for name in ("dev-v1.1", "train-v1.1-subset", "dev-v2.0-cs224n"):
        path = str(shared_data / "squad" / f"{name}.json")
        questions, _ = read(
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
