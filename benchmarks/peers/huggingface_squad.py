"""Question answering by Hugging Face's Trainer, to compare run_squad.py with.

    python huggingface_squad.py --train_file=train-v1.1.json \
        --predict_file=dev-v1.1.json --init_checkpoint=FOLDER \
        --output_dir=NEW_FOLDER

trains on one file in the format of SQuAD 1.1, writes answers to the questions
of the other into OUTPUT_DIR/predictions.json and saves the model, as users of
the recipe run_qa do it: fast tokenizer, windows that overlap, the recipe of
huggingface_trainer.py, the best pair of a start and an end over all windows of
a question. The last line that it prints is JSON: the time of the training loop
and that of the prediction (tokenizer, model, answers), how many windows there
were, versions.

--doc_stride is what it is in run_qa: how many pieces of the context a window
shares with the next. In BERT's run_squad.py it is how far the next begins
behind a window. Windows of 384 pieces with 128 advance by some 240 here and by
128 there, so that there are fewer here. Here, as in run_qa, any window with a
piece may answer for it; nothing asks where it has the most context.

It needs what huggingface.txt lists, and nothing of bert_tf.
"""

import argparse
import dataclasses
import json
import pathlib
import time
from collections.abc import Sequence

import numpy as np
import torch
import transformers
from huggingface_trainer import recipe_parser, training_arguments, versions
from transformers import (
    AutoModelForQuestionAnswering,
    AutoTokenizer,
    DataCollatorWithPadding,
    Trainer,
)


@dataclasses.dataclass(frozen=True)
class Question:
    """A question; its first answer, if any, begins at character `start`."""

    id: str
    text: str
    context: str
    answer: str | None
    start: int


@dataclasses.dataclass(frozen=True)
class Window:
    """What the model gets, and where that is in the context.

    Attributes:
      question: Which question it is of.
      features: Lists, unpadded, by the names that the model has for them.
      first: Place of the first piece of the context in the sequence.
      offsets: [n, 2] int64: first character of each of the n pieces of the
        context, and that behind its last.
    """

    question: int
    features: dict[str, list[int]]
    first: int
    offsets: np.ndarray

    @property
    def length(self) -> int:
        return len(self.features["input_ids"])


def main() -> None:
    arguments = parse_arguments()
    torch.set_num_threads(arguments.num_threads)
    # Trainer sets the seed as well, when the new head has its weights already.
    transformers.set_seed(arguments.random_seed)
    tokenizer = AutoTokenizer.from_pretrained(arguments.init_checkpoint)
    train_questions = read_questions(arguments.train_file)
    questions = read_questions(arguments.predict_file)
    train = [
        window.features | positions(window, train_questions[window.question])
        for window in make_windows(train_questions, tokenizer, arguments)
    ]
    trainer = Trainer(
        AutoModelForQuestionAnswering.from_pretrained(
            arguments.init_checkpoint, dtype=torch.float32
        ),
        training_arguments(arguments),
        train_dataset=train,
        data_collator=DataCollatorWithPadding(tokenizer),
        processing_class=tokenizer,
    )
    trained = trainer.train()

    started = time.perf_counter()
    windows = make_windows(questions, tokenizer, arguments)
    logits = predict(trainer, windows)
    answers = find_answers(questions, windows, logits, arguments)
    predict_seconds = time.perf_counter() - started

    path = pathlib.Path(arguments.output_dir) / "predictions.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        json.dumps(answers, indent=4, ensure_ascii=False) + "\n",
        encoding="utf-8",
    )
    trainer.save_model()
    result = {
        "train_seconds": trained.metrics["train_runtime"],
        "global_step": trained.global_step,
        "predict_seconds": predict_seconds,
        "train_windows": len(train),
        "predict_windows": len(windows),
        "versions": versions(),
    }
    print(json.dumps(result))


def parse_arguments() -> argparse.Namespace:
    """The flags, those of run_squad.py where it has them."""
    parser = recipe_parser()
    parser.add_argument("--train_file", type=pathlib.Path, required=True)
    parser.add_argument("--predict_file", type=pathlib.Path, required=True)
    parser.add_argument("--max_seq_length", type=int, default=384)
    parser.add_argument("--doc_stride", type=int, default=128)
    parser.add_argument("--max_query_length", type=int, default=64)
    # The recipe of huggingface_trainer.py has another name for it.
    parser.add_argument(
        "--predict_batch_size", dest="eval_batch_size", type=int, default=8
    )
    parser.add_argument("--n_best_size", type=int, default=20)
    parser.add_argument("--max_answer_length", type=int, default=30)
    return parser.parse_args()


def read_questions(path: pathlib.Path) -> list[Question]:
    articles = json.loads(path.read_text(encoding="utf-8-sig"))["data"]
    questions = []
    for article in articles:
        for paragraph in article["paragraphs"]:
            for entry in paragraph["qas"]:
                first = next(iter(entry.get("answers", [])), None)
                questions.append(
                    Question(
                        id=entry["id"],
                        # Blanks before it would cost pieces of the context in
                        # some tokenizers; run_qa takes them away as well.
                        text=entry["question"].lstrip(),
                        context=paragraph["context"],
                        answer=first and first["text"],
                        start=first["answer_start"] if first else 0,
                    )
                )
    return questions


def make_windows(
    questions: Sequence[Question], tokenizer, arguments: argparse.Namespace
) -> list[Window]:
    """The windows of all questions, in their order."""
    encoded = tokenizer(
        cut_texts(questions, tokenizer, arguments.max_query_length),
        [question.context for question in questions],
        truncation="only_second",
        max_length=arguments.max_seq_length,
        stride=arguments.doc_stride,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
        padding=False,
    )
    of_question = encoded.pop("overflow_to_sample_mapping")
    offsets = encoded.pop("offset_mapping")
    windows = []
    for number, question in enumerate(of_question):
        # 0 are pieces of the question, 1 those of the context, None others.
        texts = encoded.sequence_ids(number)
        first = texts.index(1) if 1 in texts else len(texts)
        pieces = offsets[number][first : first + texts.count(1)]
        windows.append(
            Window(
                question=question,
                features={name: encoded[name][number] for name in encoded},
                first=first,
                offsets=np.array(pieces, np.int64).reshape(-1, 2),
            )
        )
    return windows


def cut_texts(
    questions: Sequence[Question], tokenizer, length: int
) -> list[str]:
    """The texts of the questions, up to `length` pieces of each."""
    texts = [question.text for question in questions]
    offsets = tokenizer(
        texts,
        add_special_tokens=False,
        truncation=True,
        max_length=length,
        return_offsets_mapping=True,
    )["offset_mapping"]
    # A text with fewer pieces stays as it is, to its last character.
    return [
        text[: pieces[-1][1]] if len(pieces) == length else text
        for text, pieces in zip(texts, offsets, strict=True)
    ]


def positions(window: Window, question: Question) -> dict[str, int]:
    """The first and the last place of the answer; twice [CLS] without one."""
    absent = {"start_positions": 0, "end_positions": 0}
    if question.answer is None or not len(window.offsets):
        return absent
    starts, ends = window.offsets.T
    start, end = question.start, question.start + len(question.answer)
    if start < starts[0] or ends[-1] < end:
        return absent
    first = np.searchsorted(starts, start, side="right") - 1
    last = np.searchsorted(ends, end, side="left")
    return {
        "start_positions": window.first + int(first),
        "end_positions": window.first + int(last),
    }


def predict(trainer: Trainer, windows: Sequence[Window]) -> list[np.ndarray]:
    """[S, 2] float32 of each window: its S pieces as a start and as an end."""
    # Trainer would take them at random, in groups of like length, and not tell
    # the order.
    order = sorted(range(len(windows)), key=lambda i: -windows[i].length)
    trainer.args.train_sampling_strategy = "sequential"
    outputs = trainer.predict([windows[i].features for i in order])
    logits = np.stack(outputs.predictions, axis=-1)
    found = dict(zip(order, logits, strict=True))
    return [found[i][: window.length] for i, window in enumerate(windows)]


def find_answers(
    questions: Sequence[Question],
    windows: Sequence[Window],
    logits: Sequence[np.ndarray],
    arguments: argparse.Namespace,
) -> dict[str, str]:
    """For the id of each question the text of its best span."""
    best = [(-np.inf, "")] * len(questions)
    for window, scores in zip(windows, logits, strict=True):
        score, start, end = best_span(
            window, scores, arguments.n_best_size, arguments.max_answer_length
        )
        if score > best[window.question][0]:
            begin = window.offsets[start - window.first, 0]
            behind = window.offsets[end - window.first, 1]
            context = questions[window.question].context
            best[window.question] = score, context[begin:behind]
    return {
        question.id: text
        for question, (_, text) in zip(questions, best, strict=True)
    }


def best_span(
    window: Window, scores: np.ndarray, n_best_size: int, max_length: int
) -> tuple[float, int, int]:
    """The highest sum over the best starts and ends, and the places of both.

    The best are taken from the whole sequence, only then those outside of the
    context are dropped, as in run_qa. The sum is -inf where no pair is left.
    """
    starts, ends = np.argsort(-scores, axis=0, kind="stable")[:n_best_size].T
    lengths = ends - starts[:, None] + 1
    dropped = (lengths < 1) | (lengths > max_length)
    dropped |= (starts < window.first)[:, None]
    dropped |= ends >= window.first + len(window.offsets)
    sums = scores[starts, 0][:, None] + scores[ends, 1]
    sums[dropped] = -np.inf
    start, end = np.unravel_index(sums.argmax(), sums.shape)
    return float(sums[start, end]), int(starts[start]), int(ends[end])


if __name__ == "__main__":
    main()
