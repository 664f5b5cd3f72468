import dataclasses

import numpy as np
import pytest
import squad_files

from bert_tf.data import records
from bert_tf.tasks import questions as questions_module
from bert_tf.tasks.questions import (
    SpanEncoding,
    count_windows,
    make_windows,
    write_windows,
)

QUESTIONS = squad_files.questions(11)
ENCODING = SpanEncoding(
    tuple(squad_files.VOCAB), True, None, 19, doc_stride=5, max_query_length=4
)


@pytest.fixture
def write(tmp_path):
    source = tmp_path / "train.json"
    source.write_text("what they were read from")

    def write(questions=QUESTIONS, **changes):
        return write_windows(
            str(write.path),
            questions,
            dataclasses.replace(ENCODING, **changes),
            sources=[str(source)],
        )

    write.path = tmp_path / "train.tf_record"
    return write


@pytest.mark.parametrize("windows_per_part", [1, 3, 1000])
def test_parts_do_not_show(write, monkeypatch, windows_per_part):
    monkeypatch.setattr(questions_module, "_WINDOWS_PER_PART", windows_per_part)
    assert write()
    made = make_windows(QUESTIONS, ENCODING, with_positions=True)
    assert len(made.windows) > len(QUESTIONS)
    ids = made.batch["unique_ids"]
    np.testing.assert_array_equal(ids, 10**9 + np.arange(len(made.windows)))
    expected = records.encode_batch(ENCODING.schema, made.batch)
    assert write.path.read_bytes() == records.frame(expected)


def test_what_is_good_is_used_again(write):
    assert write()
    moved = [
        dataclasses.replace(question, id="x", where="elsewhere")
        for question in QUESTIONS
    ]
    assert not write(moved)


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
def test_any_difference_makes_them_anew(write, changes):
    write()
    assert write(**changes)
    assert not write(**changes)
    assert write()


@pytest.mark.parametrize("windows_per_part", [1, 1000])
def test_counts_and_tells_what_is_left_out(
    monkeypatch, caplog, windows_per_part
):
    monkeypatch.setattr(questions_module, "_WINDOWS_PER_PART", windows_per_part)
    asked = [dataclasses.replace(QUESTIONS[0], answers=()), *QUESTIONS[1:]]
    made = make_windows(asked, ENCODING, with_positions=True)
    assert count_windows(asked, ENCODING) == len(made.windows)
    [warning] = [m for m in caplog.messages if "without an answer" in m]
    assert "'q0' (question 0)" in warning
