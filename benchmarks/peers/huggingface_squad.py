"""Question answering by Hugging Face's Trainer, as in its recipe run_qa.

    python huggingface_squad.py --train_file=train-v1.1.json \
        --predict_file=dev-v1.1.json --init_checkpoint=FOLDER \
        --output_dir=NEW_FOLDER

trains on one file, writes answers to the questions of the other to
OUTPUT_DIR/predictions.json and saves the model. The last line printed is JSON:
the times of training and prediction, the number of windows, versions.

--doc_stride is run_qa's: the number of tokens that a window shares with the
next. In BERT's run_squad.py it is the distance between their starts: windows of
384 tokens with 128 advance by about 240 here and by 128 there. Here any window
that holds a token may answer for it, not only the one with the most context. It
needs huggingface.txt, and nothing of bert_tf.
"""

import json
import pathlib
import time
from typing import NamedTuple

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


class Question(NamedTuple):
    """A question; its first answer, if any, begins at character `start`."""

    id: str
    text: str
    context: str
    answer: str | None
    start: int


class Window(NamedTuple):
    """What the model gets, and where that is in the context.

    Attributes:
      question: The number of its question.
      features: Unpadded lists, by the model's names for them.
      first: The position of the context's first token in the sequence.
      offsets: [n, 2] int64: the first character of each of the n tokens of the
        context, and the one after its last.
    """

    question: int
    features: dict[str, list[int]]
    first: int
    offsets: np.ndarray

    @property
    def length(self):
        return len(self.features["input_ids"])


def main():
    arguments = parse_arguments()
    torch.set_num_threads(arguments.num_threads)
    # Trainer sets the seed only after the new head has its weights.
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
    text = json.dumps(answers, indent=4, ensure_ascii=False)
    path.write_text(f"{text}\n", encoding="utf-8")
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


def parse_arguments():
    """Parses the flags, which are those of run_squad.py."""
    parser = recipe_parser()
    parser.add_argument("--train_file", type=pathlib.Path, required=True)
    parser.add_argument("--predict_file", type=pathlib.Path, required=True)
    parser.add_argument("--max_seq_length", type=int, default=384)
    parser.add_argument("--doc_stride", type=int, default=128)
    parser.add_argument("--max_query_length", type=int, default=64)
    parser.add_argument(
        "--predict_batch_size", dest="eval_batch_size", type=int, default=8
    )
    parser.add_argument("--n_best_size", type=int, default=20)
    parser.add_argument("--max_answer_length", type=int, default=30)
    return parser.parse_args()


def read_questions(path):
    articles = json.loads(path.read_text(encoding="utf-8-sig"))["data"]
    questions = []
    for article in articles:
        for paragraph in article["paragraphs"]:
            for entry in paragraph["qas"]:
                first = next(iter(entry.get("answers", [])), None)
                questions.append(
                    Question(
                        id=entry["id"],
                        # As in run_qa: leading blanks are tokens of their own
                        # for some tokenizers.
                        text=entry["question"].lstrip(),
                        context=paragraph["context"],
                        answer=first and first["text"],
                        start=first["answer_start"] if first else 0,
                    )
                )
    return questions


def make_windows(questions, tokenizer, arguments):
    """Returns the windows of all questions, in their order."""
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
        # 0: tokens of the question; 1: of the context; None: special tokens.
        texts = encoded.sequence_ids(number)
        first = texts.index(1) if 1 in texts else len(texts)
        tokens = offsets[number][first : first + texts.count(1)]
        windows.append(
            Window(
                question=question,
                features={name: encoded[name][number] for name in encoded},
                first=first,
                offsets=np.array(tokens, np.int64).reshape(-1, 2),
            )
        )
    return windows


def cut_texts(questions, tokenizer, length):
    """Returns the texts of the questions, up to `length` tokens of each."""
    texts = [question.text for question in questions]
    offsets = tokenizer(
        texts,
        add_special_tokens=False,
        truncation=True,
        max_length=length,
        return_offsets_mapping=True,
    )["offset_mapping"]
    # A text with fewer tokens keeps all of its characters.
    return [
        text[: tokens[-1][1]] if len(tokens) == length else text
        for text, tokens in zip(texts, offsets, strict=True)
    ]


def positions(window, question):
    """Returns the first and last token of the answer, or twice [CLS]."""
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


def predict(trainer, windows):
    """Returns float32 [S, 2] for each window: start and end logits."""
    # Trainer would shuffle windows of similar length and not report the order.
    order = sorted(range(len(windows)), key=lambda i: -windows[i].length)
    trainer.args.train_sampling_strategy = "sequential"
    outputs = trainer.predict([windows[i].features for i in order])
    logits = np.stack(outputs.predictions, axis=-1)
    found = dict(zip(order, logits, strict=True))
    return [found[i][: window.length] for i, window in enumerate(windows)]


def find_answers(questions, windows, logits, arguments):
    """Returns the text of the best span of each question, by its id."""
    best = [(-np.inf, "")] * len(questions)
    for window, scores in zip(windows, logits, strict=True):
        score, start, end = best_span(
            window, scores, arguments.n_best_size, arguments.max_answer_length
        )
        if score > best[window.question][0]:
            begin = window.offsets[start - window.first, 0]
            after = window.offsets[end - window.first, 1]
            context = questions[window.question].context
            best[window.question] = score, context[begin:after]
    return {
        question.id: text
        for question, (_, text) in zip(questions, best, strict=True)
    }


def best_span(window, scores, n_best_size, max_length):
    """Returns the highest sum of a start and an end, and both positions.

    As in run_qa, the best are taken from the whole sequence before those
    outside of the context are dropped. The sum is -inf if none remain.
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
