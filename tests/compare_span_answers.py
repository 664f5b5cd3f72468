"""Lists where our answers differ from the original's, on one set of logits.

    python -m tests.compare_span_answers --model=/tmp/squad_output/release \
        --predict_file=squad/dev-v1.1.json --num_questions=1000 \
        --output=build/span_answers.json

A fine-tuned model reads some questions of a file, taken evenly from all of it,
once. Its logits become answers in two ways: as `run_squad.py` of this project
slices them out of the context, and as that of google-research/bert puts them
together from pieces (`original_span_answers`). Every difference goes to
--output with its question and right answers, and with the F1 of either answer,
which says whose is the better slice; the sums are printed.
"""

import argparse
import json
import pathlib
from collections import Counter
from collections.abc import Iterator, Sequence

import keras
import numpy as np

from bert_tf import metrics
from bert_tf.heads import BertSpanLabeler
from bert_tf.pretrained import load_checkpoint, open_pretrained
from bert_tf.tasks.questions import (
    Question,
    SpanEncoding,
    Windows,
    make_windows,
    read_questions,
)
from tests.original_span_answers import compare, rows_of

WINDOWS_AT_A_TIME = 16


def main() -> None:
    arguments = parse_arguments()
    pretrained = open_pretrained(arguments.model)
    model = BertSpanLabeler(pretrained.config)
    load_checkpoint(model, arguments.model)
    encoding = SpanEncoding(
        vocab=tuple(pretrained.vocab),
        do_lower_case=pretrained.do_lower_case,
        strip_accents=pretrained.strip_accents,
        max_seq_length=arguments.max_seq_length,
    )
    found = read_questions(
        str(arguments.predict_file),
        with_negative=arguments.version_2_with_negative,
        needs_answers=False,
    )
    count = min(arguments.num_questions, len(found))
    questions = [found[i * len(found) // count] for i in range(count)]
    windows = make_windows(questions, encoding, with_positions=False)
    logits = logits_of(model, windows)
    different = list(
        differences(
            questions,
            windows,
            logits,
            encoding,
            with_negative=arguments.version_2_with_negative,
        )
    )
    arguments.output.write_text(
        json.dumps(different, indent=1, ensure_ascii=False) + "\n",
        encoding="utf-8",
    )
    print(f"{len(questions)} questions, {len(windows.windows)} windows")
    print(f"{len(different)} different answers; they are in {arguments.output}")
    for (kind, better), count in sorted(
        Counter((entry["kind"], entry["better"]) for entry in different).items()
    ):
        print(f"{count:6} {kind}; better: {better}")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--predict_file", type=pathlib.Path, required=True)
    parser.add_argument("--num_questions", type=int, default=1000)
    parser.add_argument("--max_seq_length", type=int, default=384)
    parser.add_argument("--version_2_with_negative", action="store_true")
    parser.add_argument("--output", type=pathlib.Path, required=True)
    return parser.parse_args()


def logits_of(
    model: keras.Model, windows: Windows
) -> tuple[np.ndarray, np.ndarray]:
    """Logits of a start and of an end, [w, S]; -inf where there is nothing."""
    names = ("input_ids", "input_mask", "segment_ids")
    features = {name: windows.batch[name] for name in names}
    starts, ends = (
        np.full(features["input_ids"].shape, -np.inf, np.float32)
        for _ in range(2)
    )
    # Like lengths together.
    lengths = features["input_mask"].sum(axis=1)
    order = np.argsort(lengths, kind="stable")
    for first in range(0, len(order), WINDOWS_AT_A_TIME):
        rows = order[first : first + WINDOWS_AT_A_TIME]
        longest = lengths[rows].max()
        outputs = model(
            {name: x[rows, :longest] for name, x in features.items()}
        )
        for logits, name in ((starts, "start_logits"), (ends, "end_logits")):
            logits[rows, :longest] = keras.ops.convert_to_numpy(outputs[name])
    is_padding = features["input_mask"] == 0
    starts[is_padding] = ends[is_padding] = -np.inf
    return starts, ends


def differences(
    questions: Sequence[Question],
    windows: Windows,
    logits: tuple[np.ndarray, np.ndarray],
    encoding: SpanEncoding,
    **options,
) -> Iterator[dict]:
    """One entry for each question whose answers are not the same."""
    owned = rows_of(questions, windows.windows)
    for question, rows in zip(questions, owned, strict=True):
        ours, original = compare(
            question, rows, windows, *logits, encoding, **options
        )
        if original is None or ours.text != original.text:
            theirs = None if original is None else original.text
            yield entry(question, ours.text, theirs)


def entry(question: Question, ours: str, theirs: str | None) -> dict:
    f1 = {
        "ours": score(question, ours),
        "original": 0.0 if theirs is None else score(question, theirs),
    }
    better = max(f1, key=lambda name: f1[name])
    return {
        "id": question.id,
        "question": question.question,
        "answers": [answer.text for answer in question.answers],
        "ours": ours,
        "original": theirs,
        "kind": kind_of(question, ours, theirs),
        "f1": f1,
        "better": better if f1["ours"] != f1["original"] else "same F1",
    }


def score(question: Question, text: str) -> float:
    """F1 of an answer, from 0 to 100, against the right ones."""
    gold = {question.id: [answer.text for answer in question.answers]}
    if not question.answers:
        return 100.0 * (not text)
    return metrics.squad_v1(gold, {question.id: text})["f1"]


def kind_of(question: Question, ours: str, theirs: str | None) -> str:
    """What the difference is, in words."""
    if theirs is None:
        return "the original crashes"
    if theirs not in question.context:
        return "the original's is no slice of the context"
    if ours and ours in theirs:
        return "the original's has more around ours"
    if theirs and theirs in ours:
        return "ours has more around the original's"
    return "another part of the context"


if __name__ == "__main__":
    main()
