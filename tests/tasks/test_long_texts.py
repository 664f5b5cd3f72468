"""Windows over long texts: rows of the features, and one answer per text."""

import dataclasses
import random

import numpy as np
import pytest
from keras import ops

from bert_tf.config import BertConfig
from bert_tf.errors import InputError
from bert_tf.kinds.classification.task import ClassificationTask
from bert_tf.tasks.encoding import Encoding
from bert_tf.tasks.examples import Example
from bert_tf.tasks.task import Rows
from tests.tasks.small_training import as_arrays

VOCAB = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", *"abcdefghij")
CUT = Encoding(VOCAB, True, None, 7, "single_label", ("no", "yes"))
WINDOWS = dataclasses.replace(CUT, doc_stride=3)
CONFIG = BertConfig(len(VOCAB), 8, 1, 2, 11, max_position_embeddings=19)


def texts_of(example, encoding=WINDOWS):
    """Returns the rows of an example as text, without padding."""
    batch = encoding.encode([example]).batch
    rows = zip(batch["input_ids"], batch["input_mask"], strict=True)
    return [
        " ".join(VOCAB[n].strip("[]") for n in ids[mask > 0])
        for ids, mask in rows
    ]


@pytest.mark.parametrize(
    ("text_a", "text_b", "rows"),
    [
        ("", None, ["CLS SEP"]),
        (
            "a b c d e f g h i",
            None,
            ["CLS a b c d e SEP", "CLS d e f g h SEP", "CLS g h i SEP"],
        ),
        # The longer text is split, the other one keeps half of the room.
        ("a", "b c d e f", ["CLS a SEP b c d SEP", "CLS a SEP e f SEP"]),
        ("a b c d", "e f g", ["CLS a b SEP e f SEP", "CLS c d SEP e f SEP"]),
        ("a b c", "d e f", ["CLS a b SEP d e SEP", "CLS a b SEP f SEP"]),
        ("", "a b c d e", ["CLS SEP a b c d SEP", "CLS SEP d e SEP"]),
    ],
)
def test_windows(text_a, text_b, rows):
    example = Example("0", text_a, text_b, label="yes")
    assert texts_of(example) == rows
    assert WINDOWS.count_rows([example]) == len(rows)
    batch, counts, num_cut, _ = WINDOWS.encode([example])
    assert counts.tolist() == [len(rows)]
    assert batch["label_ids"].tolist() == [1] * len(rows)
    assert batch["window_numbers"].tolist() == [*range(len(rows))]
    assert batch["num_windows"].tolist() == [len(rows)] * len(rows)
    both_cut = text_b is not None and len(text_a) > 3 and len(text_b) > 3
    assert num_cut == both_cut


def test_texts_that_fit_have_the_rows_of_truncated_texts():
    """And windows of longer ones contain all tokens of the longer text."""
    draw = random.Random(3)
    for number in range(300):
        room, stride = draw.randint(5, 13), draw.randint(1, 20)
        cut = dataclasses.replace(CUT, max_seq_length=room)
        windows = dataclasses.replace(cut, doc_stride=stride)
        lengths = draw.randint(0, 15), draw.randint(0, 15) * (number % 2)
        a, b = (" ".join(draw.choices(VOCAB[4:], k=n)) for n in lengths)
        example = Example("0", a, b if number % 2 else None, label="no")
        found, _, num_cut, _ = windows.encode([example])
        expected, _, is_cut, _ = cut.encode([example])
        if not is_cut:
            assert num_cut == 0
            for name, values in expected.items():
                np.testing.assert_array_equal(found[name], values)
            continue
        assert len(found["input_ids"]) > 1
        longer = a if lengths[0] > lengths[1] else b
        segment = int(lengths[1] > 0 and lengths[0] <= lengths[1])
        parts = [
            [VOCAB[n] for n in ids[(segments == segment) & (mask > 0)] if n > 3]
            for ids, segments, mask in zip(
                *(found[n] for n in ("input_ids", "segment_ids", "input_mask")),
                strict=True,
            )
        ]
        seen, step = [], min(stride, len(parts[0]))
        for start, part in enumerate(parts):
            assert len(part) <= len(parts[0])
            assert part[: len(seen) - start * step] == seen[start * step :]
            seen[start * step :] = part
        assert seen == longer.split()


def test_rows_of_texts():
    rows = Rows.of([0, 1, 0, 0, 1, 2])
    values = np.array([[1, 8], [3, 2], [0.1, 7], [1, 1], [0, 5], [2, 0]], "f4")

    def pool(*options):
        return ops.convert_to_numpy(rows.pool(values, *options))

    assert pool("max").tolist() == [[3, 8], values[2].tolist(), [2, 5]]
    mean = pool("mean")
    np.testing.assert_allclose(mean, [[2, 5], [0.1, 7], [1, 2]], rtol=1e-6)
    assert mean.dtype == np.float32
    assert mean[1].tobytes() == values[2].tobytes()
    weighted = pool("mean", np.array([3, 1, 5, 1, 1, 2]))
    np.testing.assert_allclose(
        weighted, [[1.5, 6.5], [0.1, 7], [1.25, 1.5]], rtol=1e-6
    )


@pytest.mark.parametrize("problem", ["single_label", "regression"])
def test_every_text_counts_once(problem):
    """In the losses of an epoch, and in the scores."""
    labels = ("no", "yes") if problem == "single_label" else ()
    encoding = dataclasses.replace(WINDOWS, problem=problem, labels=labels)
    names = ["yes", "no", "yes"] if labels else [2.0, -1.0, 0.5]
    sizes = (3, 20, 9)
    batch = encoding.encode(
        [
            Example("", "a " * size, label=label)
            for size, label in zip(sizes, names, strict=True)
        ]
    ).batch
    counts = np.diff([*np.flatnonzero(batch["window_numbers"] == 0), 10])
    assert counts.tolist() == [1, 6, 3]
    task = ClassificationTask(
        CONFIG,
        dataclasses.replace(encoding, window_pooling="max"),
        rows_per_example=10 / 3,
    )
    generator = np.random.default_rng(0)
    width = 2 if labels else 1
    logits = generator.normal(size=[10, width]).astype("float32")
    outputs = {"logits": ops.convert_to_tensor(logits)}
    plain = ClassificationTask(
        CONFIG, dataclasses.replace(CUT, problem=problem, labels=labels)
    )
    without = {n: v for n, v in batch.items() if "window" not in n}
    losses, weights = (
        ops.convert_to_numpy(part["label_loss"])
        for part in (task.losses(batch, outputs), task.loss_weights(batch))
    )
    alone = ops.convert_to_numpy(plain.losses(without, outputs)["label_loss"])
    text = np.repeat(range(3), counts)
    of_texts = np.bincount(text, losses) / len(losses)
    means = np.bincount(text, alone) / counts
    np.testing.assert_allclose(of_texts, means / 3, rtol=1e-5)
    assert (weights == 1).all()

    kept = as_arrays(task.predictions(batch, outputs))
    pooled = np.stack([logits[text == n].max(axis=0) for n in range(3)])
    firsts = batch["label_ids"][batch["window_numbers"] == 0]
    by_hand = {"label_ids": firsts, "input_ids": firsts[:, None]}
    by_hand = plain.predictions(
        by_hand, {"logits": ops.convert_to_tensor(pooled)}
    )
    expected = plain.score(as_arrays(by_hand))
    found = task.score(task.of_examples(kept))
    assert found == pytest.approx(expected, rel=1e-5)


def test_unsupported_windows_are_errors():
    for changes, message in (
        ({"max_seq_length": 4}, "at least 5 with doc_stride; got 4"),
        ({"window_pooling": "sum"}, "one of mean or max; got 'sum'"),
    ):
        with pytest.raises(InputError, match=message):
            dataclasses.replace(WINDOWS, **changes)
