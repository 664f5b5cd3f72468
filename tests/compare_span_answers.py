"""Lists where our answers differ from the original's, on equal logits.

    python -m tests.compare_span_answers --model=/tmp/squad_output/release \
        --predict_file=squad/dev-v1.1.json --num_questions=1000 \
        --output=build/span_answers.json

A fine-tuned model reads questions taken evenly from the file. Its logits become
answers in two ways: as slices of the context, as in `run_squad.py` here, and
rebuilt from tokens, as in google-research/bert (`original_span_answers`). Every
difference goes to --output with the F1 of both answers; the totals are printed.
"""

import argparse
import json
import pathlib
from collections import Counter

import keras
import numpy as np

from bert_tf.checkpoints.pretrained import load_checkpoint, open_pretrained
from bert_tf.kinds.spans.squad_files import (
    Question,
    SpanEncoding,
    make_windows,
    read_questions,
)
from bert_tf.modeling.heads import BertSpanLabeler
from bert_tf.tasks import metrics
from tests.original_span_answers import compare, rows_of

WINDOWS_AT_A_TIME = 16


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--predict_file", required=True)
    parser.add_argument("--num_questions", type=int, default=1000)
    parser.add_argument("--max_seq_length", type=int, default=384)
    parser.add_argument("--version_2_with_negative", action="store_true")
    parser.add_argument("--output", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    pretrained = open_pretrained(arguments.model)
    model = BertSpanLabeler(pretrained.config)
    load_checkpoint(model, arguments.model)
    encoding = SpanEncoding(
        vocab=tuple(pretrained.vocab),
        do_lower_case=pretrained.do_lower_case,
        strip_accents=pretrained.strip_accents,
        max_seq_length=arguments.max_seq_length,
    )
    with_negative = arguments.version_2_with_negative
    found = read_questions(
        arguments.predict_file, with_negative=with_negative, needs_answers=False
    )
    count = min(arguments.num_questions, len(found))
    questions = [found[i * len(found) // count] for i in range(count)]
    made = make_windows(questions, encoding, with_positions=False)
    starts, ends = logits_of(model, made.batch)
    different = []
    for question, rows in zip(questions, rows_of(made), strict=True):
        ours, original = compare(
            question,
            rows,
            made,
            starts,
            ends,
            encoding,
            with_negative=with_negative,
        )
        if original is None or ours.text != original.text:
            theirs = None if original is None else original.text
            different.append(entry(question, ours.text, theirs))
    text = json.dumps(different, indent=1, ensure_ascii=False)
    arguments.output.write_text(f"{text}\n", encoding="utf-8")
    print(f"{len(questions)} questions, {len(starts)} windows")
    print(f"{len(different)} different answers are in {arguments.output}")
    for (kind, better), number in sorted(
        Counter((each["kind"], each["better"]) for each in different).items()
    ):
        print(f"{number:6} {kind}; better: {better}")


def logits_of(
    model: keras.Model, batch: dict[str, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the logits of starts and ends, [w, S]; -inf for padding."""
    names = ("input_ids", "input_mask", "segment_ids")
    features = {name: batch[name] for name in names}
    parts = []
    for first in range(0, len(batch["input_ids"]), WINDOWS_AT_A_TIME):
        some = slice(first, first + WINDOWS_AT_A_TIME)
        outputs = model({name: x[some] for name, x in features.items()})
        parts.append(
            [
                np.where(
                    features["input_mask"][some] > 0,
                    keras.ops.convert_to_numpy(outputs[f"{name}_logits"]),
                    -np.inf,
                )
                for name in ("start", "end")
            ]
        )
    starts, ends = map(np.concatenate, zip(*parts, strict=True))
    return starts, ends


def entry(question: Question, ours: str, theirs: str | None) -> dict:
    f1 = {
        "ours": f1_of(question, ours),
        "original": 0.0 if theirs is None else f1_of(question, theirs),
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


def f1_of(question: Question, text: str) -> float:
    if not question.answers:
        return 100.0 * (not text)
    gold = {question.id: [answer.text for answer in question.answers]}
    return metrics.squad_v1(gold, {question.id: text})["f1"]


def kind_of(question: Question, ours: str, theirs: str | None) -> str:
    """Returns a description of the difference."""
    if theirs is None:
        return "the original crashes"
    if theirs not in question.context:
        return "the original's is not a slice of the context"
    if ours and ours in theirs:
        return "the original's answer contains ours"
    if theirs and theirs in ours:
        return "our answer contains the original's"
    return "another part of the context"


if __name__ == "__main__":
    main()
