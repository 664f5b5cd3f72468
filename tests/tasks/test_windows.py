"""Windows compared with the original's loops; answers as slices of a text."""

import random

import numpy as np
import pytest

from bert_tf.errors import InputError
from bert_tf.kinds.spans.squad_files import (
    Answer,
    Question,
    SpanEncoding,
    make_windows,
    read_questions,
)
from bert_tf.tokenization.normalization import Normalizer
from bert_tf.tokenization.vocabulary_file import read_tokens
from bert_tf.tokenization.wordpiece import FullTokenizer
from tests import original_span_answers as slow

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
WORDS = "who was the man japan ##ese elec ##tronics ( ) - , . 1895 1943 a b c"
VOCAB = (*SPECIAL, *WORDS.split())

# Scripts without spaces, from right to left, with combining marks; line ends,
# unusual spaces, deleted characters, and emoji of several code points.
TEXTS = {
    "latin": "The café (Café) re-opened: naïve, jalapeño\u0301s",
    "decomposed": "cafe\u0301 Cafe\u0301s n\u0303 \u0301x",
    "chinese": "北京是中华人民共和国的首都，位于华北平原。Abc北京",
    "thai": "กรุงเทพมหานคร เป็นเมืองหลวง น้ำท่วม",
    "arabic": "القاهرةُ عاصمةُ مصر، وأكبر مدنها.",
    "hebrew": "יְרוּשָׁלַיִם היא בירת ישראל־הגדולה",
    "korean": "서울특별시는 대한민국의 수도이다",
    "devanagari": "नई दिल्ली भारत की राजधानी है।",
    "emoji": "ok 👩‍👩‍👧 👍🏽! 🇰🇷x ☂️",
    "spaces": "a\r\nb\u202fc\u00a0d\u3000e\tf\n\n g\u2028h",
    "deleted": "a\u200bb\u00adc \u200b \ufeffd\x00e \x0bf",
    "sigma": "ΟΔΟΣ ΟΔΟΣ. ΣΑΣ İstanbul ǅ ß",
}


@pytest.fixture(scope="module")
def vocabulary():
    """Every normalized character of the texts as a token."""
    normal = Normalizer(do_lower_case=True)(" ".join(TEXTS.values()))
    characters = sorted({*"".join(normal.split())})
    return (*SPECIAL, *characters, *(f"##{c}" for c in characters))


def encoding(max_seq_length=31, vocab=VOCAB, lower=True, **options):
    options = {"doc_stride": 5, "max_query_length": 7, **options}
    return SpanEncoding(vocab, lower, None, max_seq_length, **options)


def tokens(encoding, row):
    ids = row[: np.count_nonzero(row)]
    return " ".join(encoding.vocab[index] for index in ids)


def letters(number):
    return " ".join("abc"[n % 3] for n in range(number))


def test_one_window():
    context = "The Japanese (1895-1943)."
    question = Question("q", "Who?", context, (Answer("1895", 14),))
    settings = encoding(23)
    batch, counts, _, faults = make_windows([question], settings, True)
    schema = (*settings.schema, *settings.for_answers().schema)
    assert tokens(settings, batch["input_ids"][0]) == (
        "[CLS] who [UNK] [SEP] the japan ##ese ( 1895 - 1943 ) . [SEP]"
    )
    assert {name: (a.shape, a.dtype) for name, a in batch.items()} == {
        f.name: ((1, *f.shape), np.int32) for f in schema
    }
    assert batch["input_mask"].tolist() == [[1] * 14 + [0] * 9]
    assert batch["segment_ids"].tolist() == [[0] * 4 + [1] * 10 + [0] * 9]
    assert batch["start_positions"].tolist() == [8]
    assert batch["end_positions"].tolist() == [8]
    assert batch["unique_ids"].tolist() == [1000000000]
    assert batch["is_impossible"].tolist() == [0]
    assert counts.tolist() == [1]
    window = slow.window_of(batch, 0)
    assert window.first == 4
    pieces = zip(window.starts, window.ends, strict=True)
    slices = " ".join(context[a:b] for a, b in pieces)
    assert slices == "The Japan ese ( 1895 - 1943 ) ."
    assert window.is_max_context.all()
    assert not faults.counts


@pytest.mark.parametrize(
    ("question", "context", "expected"),
    [
        ("", "a b", "[CLS] [SEP] a b [SEP]"),
        # JSON can contain half of an emoji.
        ("\ud83d", "a \ud83d b", "[CLS] [UNK] [SEP] a [UNK] b [SEP]"),
        ("who was the man", "a", "[CLS] who was the [SEP] a [SEP]"),
        ("The", "a", "[CLS] [UNK] [SEP] a [SEP]"),
    ],
)
def test_sequences(question, context, expected):
    settings = encoding(max_query_length=3, lower=False)
    asked = [Question("q", question, context)]
    batch, _, _, faults = make_windows(asked, settings, False)
    row = slow.window_of(batch, 0)
    assert tokens(settings, batch["input_ids"][0]) == expected
    assert row.first == expected.split().index("[SEP]") + 1
    is_truncated = question.endswith("man")
    assert ("`max_query_length`" in str(faults.counts)) == is_truncated


def slow_windows(num_tokens, room, doc_stride):
    """Returns (start, length) of each window, with the original's loop."""
    found, start = [], 0
    while start < num_tokens:
        length = min(num_tokens - start, room)
        found.append((start, length))
        if start + length == num_tokens:
            break
        start += min(length, doc_stride)
    return found


def slow_owner(found, token):
    """Returns the window of maximum context, with the original's loop."""
    best_score, best = None, None
    for number, (start, length) in enumerate(found):
        left, right = token - start, start + length - 1 - token
        if left < 0 or right < 0:
            continue
        score = min(left, right) + 0.01 * length
        if best_score is None or score > best_score:
            best_score, best = score, number
    return best


@pytest.mark.parametrize(
    ("max_seq_length", "doc_stride"),
    [
        *[(13, 1), (13, 100), (29, 7)],
        # The last window is so short that its length decides.
        (311, 151),
    ],
)
def test_windows_are_the_originals(max_seq_length, doc_stride):
    draw = random.Random(max_seq_length)
    lengths = [
        (draw.randrange(10), n) for n in [*range(0, 61, 3), *range(301, 337, 5)]
    ]
    questions = [
        Question(str(n), letters(query), letters(context))
        for n, (query, context) in enumerate(lengths)
    ]
    settings = encoding(max_seq_length, doc_stride=doc_stride)
    made = make_windows(questions, settings, False)
    owned = slow.rows_of(made)
    for number, (query, context) in enumerate(lengths):
        query = min(query, 7)
        room = max_seq_length - query - 3
        found = slow_windows(context, room, doc_stride) or [(0, 0)]
        owners = [slow_owner(found, piece) for piece in range(context)]
        assert len(owned[number]) == len(found)
        for rank, (start, length) in enumerate(found):
            row = slow.window_of(made.batch, owned[number][rank])
            assert row.first == (query + 2 if length else 0)
            pieces = range(start, start + length)
            # Tokens are letters, each followed by a space.
            assert row.starts.tolist() == [2 * piece for piece in pieces]
            assert row.ends.tolist() == [2 * piece + 1 for piece in pieces]
            assert row.is_max_context.tolist() == [
                owners[piece] == rank for piece in pieces
            ]


def test_parts_have_about_the_number_of_windows():
    # 1, 54, 1, 1, 4 and 1 windows at three characters a token.
    lengths = [1, 400, 3, 2, 29, 5]
    asked = [Question(str(n), "who", letters(n)) for n in lengths]
    for num_windows, expected in [(1, [1] * 6), (5, [1, 1, 2, 2]), (99, [6])]:
        parts = list(encoding(17).split(asked, num_windows))
        assert [q for part in parts for q in part] == asked
        assert [len(part) for part in parts] == expected


def test_a_shared_context_is_tokenized_once(monkeypatch):
    tokenize = FullTokenizer.tokenize_with_offsets
    calls = []

    def counting(self, text):
        calls.append(text)
        return tokenize(self, text)

    monkeypatch.setattr(FullTokenizer, "tokenize_with_offsets", counting)
    asked = [Question(str(n), "who", letters(7 + n // 5)) for n in range(15)]
    make_windows(asked, encoding(), False)
    assert calls == [letters(7), letters(8), letters(9)]


@pytest.mark.parametrize("name", TEXTS)
def test_positions_give_the_answer_back(vocabulary, name):
    """Answers from any token to any other, in every window with all of it."""
    context = TEXTS[name]
    settings = encoding(17, vocabulary, doc_stride=3)
    tokenizer = FullTokenizer(settings.vocab)
    pieces = tokenizer.tokenize_with_offsets(context)
    draw = random.Random(name)
    for _ in range(23):
        left, right = sorted(draw.choices(pieces, k=2), key=lambda p: p.start)
        start, end = left.start, right.end
        # A Korean syllable is up to three tokens of one character.
        inside = [
            number
            for number, piece in enumerate(pieces)
            if start <= piece.start and piece.end <= end
        ]
        answer = Answer(context[start:end], start)
        question = Question("q", "a", context, (answer,))
        batch = make_windows([question], settings, True).batch
        positions = batch["start_positions"], batch["end_positions"]
        for number, place in enumerate(np.stack(positions, axis=1).tolist()):
            row = slow.window_of(batch, number)
            has = range(3 * number, 3 * number + len(row.starts))
            if inside[0] in has and inside[-1] in has:
                first, last = place[0] - row.first, place[1] - row.first
                assert (row.starts[first], row.ends[last]) == (start, end)
            else:
                assert place == [0, 0]


JAPAN = "(Japanese electronics, 1895)"


@pytest.mark.parametrize(
    ("context", "text", "whole"),
    [
        # Tokens that the answer touches count whole.
        (JAPAN, "apane", "Japanese"),
        (JAPAN, " electronics", "electronics"),
        # Characters are code points: an emoji is one, as in SQuAD's files.
        ("👍👍 the man", "man", "man"),
    ],
)
def test_the_tokens_of_an_answer(context, text, whole):
    answers = Answer(text, context.index(text)), Answer(context[:1], 0)
    question = Question("q", "who", context, answers)
    batch = make_windows([question], encoding(), True).batch
    start = batch["token_starts"][0, batch["start_positions"][0]]
    end = batch["token_ends"][0, batch["end_positions"][0]]
    assert context[start:end] == whole


def test_questions_without_an_answer():
    plausible = (Answer("b", 2),)
    questions = [
        Question("q1", "who", "a b", plausible, is_impossible=True),
        Question("q2", "who", "a b", is_impossible=True),
        Question("none", "who", "a b"),
        Question("deleted", "who", "a \u200b b", (Answer("\u200b", 2),)),
        Question("blank", "who", " \u200b\n", plausible),
        Question("good", "who", "a b", plausible),
        Question("long", "who", letters(29), (Answer(letters(27), 2),)),
    ]
    batch, counts, _, faults = make_windows(questions, encoding(), True)
    assert np.flatnonzero(counts).tolist() == [0, 1, 5, 6]
    assert batch["is_impossible"].tolist()[:3] == [1, 1, 0]
    # Without an answer, both positions are [CLS]'s.
    for name in ("start_positions", "end_positions"):
        assert batch[name][:3].tolist() == [0, 0, 4]
        assert not batch[name][3:].any()
    assert {k: v.split()[0] for k, v in faults.firsts.items()} == {
        "Questions without an answer that has tokens are skipped": "'none'",
        "Questions whose context has no token": "'blank'",
        "Answers that no window holds in full, trained as no answer": "'long'",
    }
    assert sorted(faults.counts.values()) == [1, 1, 2]
    # Prediction ignores answers.
    batch, counts, _, _ = make_windows(questions, encoding(), False)
    assert counts.all()
    assert not {"start_positions", "is_impossible"} & batch.keys()


def test_invalid_lengths():
    message = "max_seq_length` .* 68 .*max_query_length=64`, .* 67"
    with pytest.raises(InputError, match=message):
        SpanEncoding(VOCAB, True, None, 67, 128, 64)


def test_real_answers_come_back(shared_data):
    questions = read_questions(
        str(shared_data / "squad" / "dev-v1.1.json"),
        with_negative=False,
        needs_answers=True,
    )[::28]
    vocab = read_tokens(str(shared_data / "vocab/bert-base-uncased-vocab.txt"))
    # Every context fits into one window.
    settings = SpanEncoding(tuple(vocab), True, None, 1024)
    batch, counts, _, _ = make_windows(questions, settings, True)
    assert (counts == 1).all()
    num_exact = 0
    for row, question in enumerate(questions):
        answer = question.answers[0]
        start = batch["token_starts"][row, batch["start_positions"][row]]
        end = batch["token_ends"][row, batch["end_positions"][row]]
        assert start <= answer.start
        assert answer.start + len(answer.text) <= end
        num_exact += question.context[start:end] == answer.text
    assert num_exact / len(questions) > 0.995
