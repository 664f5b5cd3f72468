"""A classifier fine-tuned by Hugging Face's Trainer.

    python huggingface_trainer.py --task_name=mrpc --data_dir=MRPC \
        --init_checkpoint=FOLDER --output_dir=NEW_FOLDER

trains on train.tsv, predicts dev.tsv and saves the model, as users of Trainer
do: fast tokenizer, batches of examples of similar length padded to the longest,
fused AdamW, float32. The last line printed is JSON: the time of the training
loop, the loss on dev.tsv, labels, predictions, versions. It needs
huggingface.txt, and nothing of bert_tf.
"""

import argparse
import importlib.metadata
import json
import pathlib
from typing import NamedTuple

import torch
import transformers
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
)


class Task(NamedTuple):
    """The columns of the files, and the classes; none for a regression."""

    text_a: int
    text_b: int | None
    label: int
    classes: tuple[str, ...] = ("0", "1")


TASKS = {
    "mrpc": Task(text_a=3, text_b=4, label=0),
    "sst-2": Task(text_a=0, text_b=None, label=1),
    "sts-b": Task(text_a=7, text_b=8, label=9, classes=()),
}


def main():
    arguments = parse_arguments()
    torch.set_num_threads(arguments.num_threads)
    # Trainer sets the seed only after the new head has its weights.
    transformers.set_seed(arguments.random_seed)
    task = TASKS[arguments.task_name]
    tokenizer = AutoTokenizer.from_pretrained(arguments.init_checkpoint)
    train, dev = (
        features(
            arguments.data_dir / f"{split}.tsv",
            task,
            tokenizer,
            arguments.max_seq_length,
        )
        for split in ("train", "dev")
    )
    trainer = Trainer(
        make_model(arguments.init_checkpoint, task),
        training_arguments(arguments),
        train_dataset=train,
        data_collator=DataCollatorWithPadding(tokenizer),
        processing_class=tokenizer,
    )
    trained = trainer.train()
    predicted = trainer.predict(dev)
    trainer.save_model()
    result = {
        "train_seconds": trained.metrics["train_runtime"],
        "global_step": trained.global_step,
        "eval_loss": predicted.metrics["test_loss"],
        "labels": predicted.label_ids.tolist(),
        "predictions": decide(predicted.predictions, task).tolist(),
        "versions": versions(),
    }
    print(json.dumps(result))


def parse_arguments():
    """Parses the flags, which are those of run_classifier.py."""
    parser = recipe_parser()
    parser.add_argument("--task_name", choices=TASKS, required=True)
    parser.add_argument("--data_dir", type=pathlib.Path, required=True)
    parser.add_argument("--max_seq_length", type=int, default=128)
    parser.add_argument("--eval_batch_size", type=int, default=8)
    return parser.parse_args()


def recipe_parser():
    """Returns a parser with the flags of every training."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--init_checkpoint", required=True)
    parser.add_argument("--output_dir", required=True)
    parser.add_argument("--train_batch_size", type=int, default=32)
    parser.add_argument("--learning_rate", type=float, default=5e-5)
    parser.add_argument("--num_train_epochs", type=float, default=3.0)
    parser.add_argument("--max_steps", type=int, default=-1)
    parser.add_argument("--random_seed", type=int, default=1)
    parser.add_argument("--num_threads", type=int, default=2)
    return parser


def read_rows(path):
    """Returns the rows of a table without its header; quotes are text."""
    with path.open(encoding="utf-8-sig", newline="\n") as file:
        lines = [line.rstrip("\r\n") for line in file]
    return [line.split("\t") for line in lines if line][1:]


def features(path, task, tokenizer, length):
    """Returns unpadded examples, as dicts of lists."""
    rows = read_rows(path)
    texts = [[row[task.text_a] for row in rows]]
    if task.text_b is not None:
        texts.append([row[task.text_b] for row in rows])
    encoded = tokenizer(
        *texts, truncation="longest_first", max_length=length, padding=False
    )
    names = list(encoded)
    return [
        dict(zip(names, values, strict=True), labels=label_of(row, task))
        for row, *values in zip(rows, *encoded.values(), strict=True)
    ]


def label_of(row, task):
    label = row[task.label]
    return task.classes.index(label) if task.classes else float(label)


def make_model(folder, task):
    """Loads the checkpoint with its pooler and a new head of one layer."""
    names = dict(enumerate(task.classes or ("score",)))
    kind = "single_label_classification" if task.classes else "regression"
    return AutoModelForSequenceClassification.from_pretrained(
        folder,
        dtype=torch.float32,
        id2label=names,
        label2id={name: number for number, name in names.items()},
        problem_type=kind,
    )


def training_arguments(arguments):
    """Returns BERT's recipe; everything else is Trainer's default."""
    return TrainingArguments(
        arguments.output_dir,
        seed=arguments.random_seed,
        per_device_train_batch_size=arguments.train_batch_size,
        per_device_eval_batch_size=arguments.eval_batch_size,
        num_train_epochs=arguments.num_train_epochs,
        max_steps=arguments.max_steps,
        learning_rate=arguments.learning_rate,
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


def decide(outputs, task):
    """Returns the predictions [n] of logits [n, classes] or scores [n, 1]."""
    return outputs.argmax(axis=-1) if task.classes else outputs.reshape(-1)


def versions():
    return {
        package: importlib.metadata.version(package)
        for package in ("torch", "transformers", "accelerate")
    }


if __name__ == "__main__":
    main()
