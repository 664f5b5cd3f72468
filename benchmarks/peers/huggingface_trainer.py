"""Fine-tuning by Hugging Face's Trainer, for benchmarks/fine_tuning.py.

    python huggingface_trainer.py '{"task_name": "mrpc", "data_dir": ...}'

trains, predicts and saves the model, as users of Trainer do: fast tokenizer,
batches of examples of similar length padded to the longest, fused AdamW,
float32; SQuAD as in its recipe run_qa. The keys are the flags of our scripts.
The last line printed is JSON: the time of the training loop, the predictions,
versions. It needs huggingface.txt, and nothing of bert_tf.
"""

import importlib.metadata
import json
import pathlib
import sys

import numpy as np
import torch
import transformers
from transformers import (
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
)

# SQuAD's lengths, as in run_squad.py. In run_qa the stride is the overlap of
# two windows; in run_squad.py it is the distance between their starts.
STRIDE, NUM_BEST, MAX_ANSWER_LENGTH = 128, 20, 30


# Task -> the columns of the texts and of the label, and whether it is a class.
TASKS = {
    "mrpc": ((3, 4), 0, True),
    "sst-2": ((0,), 1, True),
    "sts-b": ((7, 8), 9, False),
}


def main():
    setup = json.loads(sys.argv[1])
    torch.set_num_threads(setup["num_threads"])
    # Trainer sets the seed only after the new head has its weights.
    transformers.set_seed(setup["random_seed"])
    tokenizer = AutoTokenizer.from_pretrained(setup["init_checkpoint"])
    run = squad if "predict_file" in setup else classify
    answer = run(setup, tokenizer)
    packages = ("torch", "transformers", "accelerate")
    versions = {name: importlib.metadata.version(name) for name in packages}
    print(json.dumps({**answer, "versions": versions}))


def train(setup, tokenizer, model, examples):
    """Trains and saves the model with BERT's recipe.

    Returns the trainer, and the time and the steps of the training.
    """
    arguments = TrainingArguments(
        setup["output_dir"],
        seed=setup["random_seed"],
        per_device_train_batch_size=setup["train_batch_size"],
        num_train_epochs=setup["num_train_epochs"],
        learning_rate=setup["learning_rate"],
        lr_scheduler_type="linear",
        warmup_steps=0.1,  # A fraction of all steps.
        weight_decay=0.01,
        max_grad_norm=1.0,
        train_sampling_strategy="group_by_length",
        use_cpu=True,
        dataloader_pin_memory=False,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    trainer = Trainer(
        model,
        arguments,
        train_dataset=examples,
        data_collator=DataCollatorWithPadding(tokenizer),
        processing_class=tokenizer,
    )
    trained = trainer.train()
    trainer.save_model()
    return trainer, {
        "train_seconds": trained.metrics["train_runtime"],
        "global_step": trained.global_step,
    }


# Sentences.


def classify(setup, tokenizer):
    """Returns the labels and the predictions of dev.tsv, and the loss."""
    *_, is_class = TASKS[setup["task_name"]]
    folder = pathlib.Path(setup["data_dir"])
    examples, dev = (
        features(folder / f"{split}.tsv", tokenizer, setup)
        for split in ("train", "dev")
    )
    names = ("0", "1") if is_class else ("score",)
    kind = "single_label_classification" if is_class else "regression"
    model = AutoModelForSequenceClassification.from_pretrained(
        setup["init_checkpoint"],
        dtype=torch.float32,
        id2label=dict(enumerate(names)),
        label2id={name: number for number, name in enumerate(names)},
        problem_type=kind,
    )
    trainer, usage = train(setup, tokenizer, model, examples)
    predicted = trainer.predict(dev)
    outputs = predicted.predictions
    found = outputs.argmax(axis=-1) if is_class else outputs.reshape(-1)
    return {
        **usage,
        "eval_loss": predicted.metrics["test_loss"],
        "labels": predicted.label_ids.tolist(),
        "predictions": found.tolist(),
    }


def features(path, tokenizer, setup):
    """Returns unpadded examples, as dicts of lists."""
    texts, label, is_class = TASKS[setup["task_name"]]
    # Quotes are text. The first line is the header.
    lines = path.read_bytes().decode("utf-8-sig").split("\n")[1:]
    rows = [line.rstrip("\r").split("\t") for line in lines if line]
    encoded = tokenizer(
        *([row[column] for row in rows] for column in texts),
        truncation="longest_first",
        max_length=setup["max_seq_length"],
        padding=False,
    )
    labels = [(int if is_class else float)(row[label]) for row in rows]
    return [
        dict(zip(encoded, values, strict=True), labels=label)
        for label, *values in zip(labels, *encoded.values(), strict=True)
    ]


# Questions.


def squad(setup, tokenizer):
    """Returns the answer of each question of the predict file, by its id."""
    questions = read_questions(setup["train_file"])
    encoded = encode(questions, tokenizer, setup)
    examples = []
    for number, window in enumerate(windows_of(encoded)):
        question = questions[encoded["overflow_to_sample_mapping"][number]]
        first, last = positions(encoded, number, question)
        window |= {"start_positions": first, "end_positions": last}
        examples.append(window)
    model = AutoModelForQuestionAnswering.from_pretrained(
        setup["init_checkpoint"], dtype=torch.float32
    )
    trainer, usage = train(setup, tokenizer, model, examples)
    questions = read_questions(setup["predict_file"])
    encoded = encode(questions, tokenizer, setup)
    logits = predict(trainer, windows_of(encoded))
    return {**usage, "answers": find_answers(questions, encoded, logits)}


def read_questions(path):
    """Returns the questions of a file, each with its "context"."""
    text = pathlib.Path(path).read_text(encoding="utf-8-sig")
    return [
        {**question, "context": paragraph["context"]}
        for article in json.loads(text)["data"]
        for paragraph in article["paragraphs"]
        for question in paragraph["qas"]
    ]


def encode(questions, tokenizer, setup):
    """Returns the windows of all questions, as the tokenizer returns them."""
    return tokenizer(
        # As in run_qa: leading blanks are tokens for some tokenizers.
        [question["question"].lstrip() for question in questions],
        [question["context"] for question in questions],
        truncation="only_second",
        max_length=setup["max_seq_length"],
        stride=STRIDE,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
        padding=False,
    )


def windows_of(encoded):
    """Returns the inputs of the model, as dicts of lists."""
    others = ("overflow_to_sample_mapping", "offset_mapping")
    columns = {k: v for k, v in encoded.items() if k not in others}
    rows = zip(*columns.values(), strict=True)
    return [dict(zip(columns, row, strict=True)) for row in rows]


def positions(encoded, number, question):
    """Returns the first and last token of the answer, or [CLS] for both."""
    for answer in question["answers"][:1]:
        start = answer["answer_start"]
        last = start + len(answer["text"]) - 1
        found = [encoded.char_to_token(number, at, 1) for at in (start, last)]
        if None not in found:
            return found
    return [0, 0]


def predict(trainer, windows):
    """Returns float32 [S, 2] for each window: start and end logits."""
    # Trainer would shuffle windows of similar length and not report the order.
    order = sorted(
        range(len(windows)), key=lambda i: -len(windows[i]["input_ids"])
    )
    trainer.args.train_sampling_strategy = "sequential"
    outputs = trainer.predict([windows[i] for i in order])
    logits = np.stack(outputs.predictions, axis=-1)
    found = dict(zip(order, logits, strict=True))
    return [found[i] for i in range(len(windows))]


def find_answers(questions, encoded, logits):
    """Returns the text of the best span of each question, by its id."""
    best = [(-np.inf, "")] * len(questions)
    for number, scores in enumerate(logits):
        # 0: tokens of the question; 1: of the context; None: special tokens.
        is_context = np.array(encoded.sequence_ids(number)) == 1
        score, start, end = best_span(scores[: len(is_context)], is_context)
        index = encoded["overflow_to_sample_mapping"][number]
        if score > best[index][0]:
            offsets = encoded["offset_mapping"][number]
            context = questions[index]["context"]
            best[index] = score, context[offsets[start][0] : offsets[end][1]]
    return {
        question["id"]: text
        for question, (_, text) in zip(questions, best, strict=True)
    }


def best_span(scores, is_context):
    """Returns the highest sum of a start and an end, and both positions.

    As in run_qa, the best positions of the whole sequence are taken first, then
    those outside of the context are dropped. The sum is -inf if none remain.
    """
    starts, ends = np.argsort(-scores, axis=0, kind="stable")[:NUM_BEST].T
    lengths = ends - starts[:, None] + 1
    dropped = (lengths < 1) | (lengths > MAX_ANSWER_LENGTH)
    dropped |= ~is_context[starts][:, None] | ~is_context[ends]
    sums = scores[starts, 0][:, None] + scores[ends, 1]
    sums[dropped] = -np.inf
    start, end = np.unravel_index(sums.argmax(), sums.shape)
    return float(sums[start, end]), int(starts[start]), int(ends[end])


if __name__ == "__main__":
    main()
