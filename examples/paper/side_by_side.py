"""Table 5 or 6 of the paper on one GPU, with many models trained side by side.

    KERAS_BACKEND=jax python examples/paper/side_by_side.py --table=tasks \\
        --input_file='text/*.txt' --held_out_file='held_out/*.txt' \\
        --data_dir=tasks --tasks=QNLI,SST-2 --squad_dir=tasks/squad \\
        --conll_dir=conll2003 --output_dir=/tmp/side_by_side

Trains the models of ablation_tasks.py or of ablation_size.py with Keras on JAX:
all seeds of a model at once, and all fine-tunings of a task at once; see
copies.py. It takes the flags of those programs except --full and --also; both
tables need --held_out_file. All sequences are padded to --max_seq_length, and
SQuAD's to --squad_seq_length.

The three steps may run on different machines, in the same --output_dir:

- --do=data writes the examples of all tasks as arrays; needs TensorFlow.
- --do=training trains; needs JAX, and KERAS_BACKEND=jax. Models that are done
  are skipped. --rows limits it to some rows of the table. On an H200 XLA
  compiled each task in 10 s with
  XLA_FLAGS=--xla_gpu_enable_triton_gemm=false, and in 40 to 70 s without.
- --do=table scores the predictions and writes the table, and
  ablation_tasks_curves.csv or ablation_size_curves.csv: the losses and
  accuracies on held-out text during pre-training.

The texts and the tasks must exist on each of these machines. A folder is for
one text and one set of options; another text needs another --output_dir.
"""

import csv
import dataclasses
import io
import json
import math
import os
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import ablation_size
import ablation_tasks
import lstms
import numpy as np
import plan
from runs import Folder
from tables import (
    Cells,
    Scores,
    Table,
    cells_of,
    comma_separated,
    draw,
    markdown,
)

from bert_tf import AdamWeightDecay, BertConfig, WarmupLinearDecay, cli
from bert_tf.base import files
from bert_tf.base.options import option
from bert_tf.data.records import pretraining_schema
from bert_tf.errors import InputError, wrong_value
from bert_tf.kinds.classification.task import ClassificationTask
from bert_tf.kinds.pretraining.task import PretrainingTask
from bert_tf.kinds.spans.squad_files import (
    SpanEncoding,
    read_questions,
)
from bert_tf.kinds.spans.task import (
    AnswerRules,
    SpanTask,
    answer_questions,
    official_scores,
)
from bert_tf.kinds.tags import conll_files as conll
from bert_tf.kinds.tags.task import TaggingTask
from bert_tf.tasks import datasets
from bert_tf.tasks.encoding import Encoding
from bert_tf.tokenization.vocabulary_file import load_vocab

# The number of measurements on held-out text during a pre-training.
MEASUREMENTS = 20
EVAL_BATCH_SIZE = 128
NBEST = 10


@dataclasses.dataclass(frozen=True, kw_only=True)
class SideBySideConfig(ablation_size.SizeConfig):
    """Options of this program."""

    table: str = option(
        "The pre-training tasks (table 5) or the size (table 6).",
        default="tasks",
        choices=("tasks", "size"),
    )
    model_size: str | None = plan.model_option("L-4_H-128_A-4")
    max_seq_length: int | None = plan.length_option(64)
    do: tuple[str, ...] = option(
        "Some of data, training, table.", default=("data", "training", "table")
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for step in self.do:
            if step not in ("data", "training", "table"):
                raise wrong_value("--do", "data, training or table", step)


class Row(NamedTuple):
    """A row of a table.

    Attributes:
      size: The size of its models.
      flags: The flags of run_pretraining.py.
      bilstm: Whether the fine-tuned models have a BiLSTM.
      num_steps: The steps of pre-training.
    """

    size: str
    flags: Mapping[str, object]
    bilstm: bool
    num_steps: int

    @property
    def pretrained(self) -> str:
        """The name of its pre-trained models, which rows may share."""
        marks = [self.size, str(self.num_steps)]
        marks += ["no-nsp"] * ("nonext_sentence" in self.flags)
        marks += ["left-to-right"] * ("objective" in self.flags)
        return "-".join(marks)

    @property
    def kind(self) -> tuple[object, ...]:
        """What all models that are fine-tuned side by side share."""
        return self.size, self.flags.get("attention_direction"), self.bilstm

    def config(self, config: SideBySideConfig) -> BertConfig:
        return dataclasses.replace(
            BertConfig.from_name(self.size, config.vocab_size),
            attention_direction=self.flags.get(
                "attention_direction", "bidirectional"
            ),
            initializer_range=config.initializer_range,
            hidden_dropout_prob=config.dropout_rate,
            attention_probs_dropout_prob=config.dropout_rate,
        )

    def task(self, config: SideBySideConfig) -> PretrainingTask:
        length = config.max_seq_length
        return PretrainingTask(
            self.config(config),
            length,
            plan.predictions(length),
            next_sentence="nonext_sentence" not in self.flags,
            objective=str(self.flags.get("objective", "masked_lm")),
        )


def rows_of(config: SideBySideConfig) -> tuple[dict[str, Row], Table]:
    """Returns the rows by their names, and the table."""
    if config.table == "tasks":
        steps = config.num_train_steps
        rows = {
            name: Row(config.model_size, flags, on_bilstm, steps)
            for name, (flags, on_bilstm) in ablation_tasks.ROWS.items()
        }
        table = ablation_tasks.TABLE._replace(note=config.note)
    else:
        sizes, table = ablation_size.planned(config)
        rows = {
            name: Row(size, {}, False, steps)
            for name, (size, steps) in sizes.items()
        }
    return {name: rows[name] for name in config.chosen(rows)}, table


# Data.


def write_data(config: SideBySideConfig) -> None:
    """Writes `arrays/NAME.npz` for pre-training and for each task."""
    folder = Folder(config.output_dir)
    length = config.max_seq_length
    made = {
        f"pretraining-{short}": (short, config.input_file, {})
        for short, _ in config.phases
    }
    made["held_out"] = (length, config.held_out_file, {"dupe_factor": 1})
    from bert_tf.data import pipeline  # Needs TensorFlow.

    write_vocab(config, folder)
    for name, (size, text, changes) in made.items():
        one = plan.records(config, text, size, **changes)
        for _ in folder.do([one.run]):
            pass
        schema = pretraining_schema(size, plan.predictions(size))
        found = pipeline.load(folder.made(one), schema, config.vocab_size)
        save(config, f"arrays/{name}.npz", found.arrays)
    for column in columns_of(config):
        name = f"arrays/{column.title}"
        save(config, f"{name}-train.npz", column.training())
        save(config, f"{name}-dev.npz", column.development())


def write_vocab(config: SideBySideConfig, folder: Folder) -> None:
    """Writes vocab.txt.

    Raises:
      InputError: The folder has a different vocabulary, with which models may
        have been trained.
    """
    vocab = plan.vocabulary(config)
    if not isinstance(vocab, str):
        for _ in folder.do([vocab.run]):
            pass
        vocab = folder.made(vocab)
    tokens = "\n".join(load_vocab(vocab)) + "\n"
    path = os.path.join(config.output_dir, "vocab.txt")
    if files.exists(path) and files.read_text(path) != tokens:
        raise InputError(
            f"{path} has the vocabulary of another text. Choose another "
            "--output_dir."
        )
    files.write_text(path, tokens)


def save(
    config: SideBySideConfig, name: str, arrays: Mapping[str, np.ndarray]
) -> None:
    path = os.path.join(config.output_dir, name)
    files.makedirs(os.path.dirname(path))
    with files.atomic_writer(path) as file:
        np.savez_compressed(file, **{n: _narrow(a) for n, a in arrays.items()})


def load(config: SideBySideConfig, name: str) -> dict[str, np.ndarray]:
    path = os.path.join(config.output_dir, name)
    if not files.exists(path):
        raise InputError(
            f"{path} is missing. --do=data writes the arrays, --do=training "
            "the weights and predictions."
        )
    with np.load(path) as found:
        return dict(found)


def trimmed(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns sequences without the columns that are padding in all rows."""
    width = arrays["input_ids"].shape[1]
    longest = np.count_nonzero(arrays["input_mask"].any(axis=0))
    return {
        name: values[:, :longest] if values.shape[1:] == (width,) else values
        for name, values in arrays.items()
    }


def _narrow(values: np.ndarray) -> np.ndarray:
    """Returns non-negative integers in the smallest type that holds them."""
    if values.dtype.kind not in "iu" or values.min(initial=0) < 0:
        return values
    return values.astype(np.min_scalar_type(values.max(initial=0)))


def causal(
    task: PretrainingTask, arrays: Mapping[str, np.ndarray]
) -> Mapping[str, np.ndarray]:
    """Returns the features of a causal LM, if the task is one.

    Source: `next_tokens` in bert_tf/kinds/pretraining/data.py.
    """
    if task.objective != "causal_lm":
        return arrays
    ids, mask = arrays["input_ids"].copy(), arrays["input_mask"]
    row, column = np.nonzero(arrays["masked_lm_weights"])
    position = arrays["masked_lm_positions"][row, column]
    ids[row, position] = arrays["masked_lm_ids"][row, column]
    return {
        "input_ids": ids,
        "input_mask": mask,
        "segment_ids": arrays["segment_ids"],
        "next_token_ids": np.pad(ids[:, 1:], [(0, 0), (0, 1)]),
        "next_token_weights": np.pad(mask[:, 1:], [(0, 0), (0, 1)]).astype(
            np.float32
        ),
    }


# Tasks.


class Column:
    """A task to fine-tune on: a column of the table."""

    def __init__(self, given: plan.Task, config: SideBySideConfig):
        self.title, self.flags = given.title, given.flags
        self.metric, self.scale = given.metric, given.scale
        path = os.path.join(config.output_dir, "vocab.txt")
        self.vocab = tuple(load_vocab(path))
        self.text = (self.vocab, config.do_lower_case, None)
        self.length = config.max_seq_length

    def training(self) -> dict[str, np.ndarray]:
        """Returns the arrays of the training set."""
        raise NotImplementedError

    def development(self) -> dict[str, np.ndarray]:
        """Returns the arrays of the development set."""
        raise NotImplementedError

    def task(self, config: BertConfig, bilstm: bool) -> Any:
        """Returns the task for a model."""
        raise NotImplementedError

    def score(self, predictions: dict[str, np.ndarray]) -> float:
        """Returns the score of one model's predictions, in percent."""
        raise NotImplementedError


class Sentences(Column):
    """A task of GLUE with classes."""

    def __init__(self, given: plan.Task, config: SideBySideConfig):
        super().__init__(given, config)
        self.data = datasets.find(self.flags["task_name"])
        if self.data.problem != "single_label":
            raise InputError(f"{self.title} is not a task with classes.")
        self.encoding = Encoding(
            *self.text, self.length, self.data.problem, self.data.labels
        )

    def training(self):
        return self._arrays("train")

    def development(self):
        return self._arrays("dev")

    def _arrays(self, split):
        (part,) = self.data.split(split, self.flags["data_dir"])
        return self.encoding.encode(part.read()).batch

    def task(self, config, bilstm):
        kind = lstms.BilstmClassification if bilstm else ClassificationTask
        return kind(config, self.encoding, self.data.metrics)

    def score(self, predictions):
        task = self.task(BertConfig.from_name("tiny", len(self.vocab)), False)
        return self.scale * task.score(predictions)[self.metric]


class Entities(Column):
    """CoNLL-2003."""

    def __init__(self, given: plan.Task, config: SideBySideConfig):
        super().__init__(given, config)
        self.train, self.dev = (
            conll.read_conll(
                conll.find_file(split, self.flags["data_dir"], None)
            ).sentences
            for split in ("train", "dev")
        )
        labels = conll.labels_of(self.train)
        self.encoding = conll.TaggingEncoding(*self.text, self.length, labels)

    def training(self):
        return self.encoding.encode(self.train).batch

    def development(self):
        return self.encoding.encode(self.dev).batch

    def task(self, config, bilstm):
        kind = lstms.BilstmTagging if bilstm else TaggingTask
        return kind(config, self.encoding)

    def score(self, predictions):
        task = self.task(BertConfig.from_name("tiny", len(self.vocab)), False)
        found = task.score(predictions, self.dev)
        return self.scale * found[self.metric]


class Spans(Column):
    """SQuAD 1.1."""

    def __init__(self, given: plan.Task, config: SideBySideConfig):
        super().__init__(given, config)
        self.encoding = SpanEncoding(*self.text, config.squad_seq_length)

    def training(self):
        questions = read_questions(
            self.flags["train_file"], with_negative=False, needs_answers=True
        )
        return self.encoding.encode(questions).batch

    def _asked(self):
        return read_questions(
            self.flags["predict_file"], with_negative=False, needs_answers=False
        )

    def development(self):
        return self.encoding.for_answers().encode(self._asked()).batch

    def task(self, config, bilstm):
        kind = lstms.BilstmSpans if bilstm else SpanTask
        return kind(config, self.encoding)

    def score(self, predictions):
        first = 0

        def predict(windows):
            nonlocal first
            part = slice(first, first + len(windows))
            first = part.stop
            return {name: found[part] for name, found in predictions.items()}

        rules = AnswerRules(n_best_size=NBEST)
        answers = answer_questions(self._asked(), self.encoding, predict, rules)
        return self.scale * official_scores(answers, False)[self.metric]


COLUMNS = {
    "run_classifier.py": Sentences,
    "run_ner.py": Entities,
    "run_squad.py": Spans,
}


def columns_of(config: SideBySideConfig) -> list[Column]:
    found = [
        *plan.glue_tasks(config),
        *plan.squad_tasks(config),
        *plan.ner_tasks(config),
    ]
    return [COLUMNS[task.script](task, config) for task in found]


# Training.


def train(config: SideBySideConfig, rows: Mapping[str, Row]) -> None:
    """Trains what is missing: pre-trained models, then fine-tuned ones."""
    models = {row.pretrained: row for row in rows.values()}
    groups: dict[tuple, list[Row]] = {}
    for name, row in models.items():
        if not done(config, f"weights/{name}.npz"):
            groups.setdefault((*row.kind, row.num_steps), []).append(row)
    for group in groups.values():
        pretrain(config, group)
    for column in columns_of(config):
        kinds: dict[tuple, list[Row]] = {}
        for row in rows.values():
            if not done(config, predictions_name(column, row)):
                kinds.setdefault(row.kind, []).append(row)
        for kind in kinds.values():
            fine_tune(config, column, kind)


def require_jax() -> None:
    """Raises InputError if Keras does not use JAX."""
    import keras

    if keras.config.backend() != "jax":
        raise InputError(
            "Training side by side needs JAX. Set KERAS_BACKEND=jax, or leave "
            "it out with --do=data,table."
        )


def done(config: SideBySideConfig, name: str) -> bool:
    return files.exists(os.path.join(config.output_dir, name))


def predictions_name(column: Column, row: Row) -> str:
    head = "-bilstm" * row.bilstm
    return f"predictions/{column.title}-{row.pretrained}{head}.npz"


def round_steps(steps: float) -> int:
    """Returns a number of steps that copies.py can train."""
    from copies import STEPS_AT_ONCE

    return max(1, round(steps / STEPS_AT_ONCE)) * STEPS_AT_ONCE


def optimizer(rate: float, num_steps: int, num_warmup_steps: int):
    schedule = WarmupLinearDecay(rate, num_steps, num_warmup_steps)
    return AdamWeightDecay(schedule, global_clipnorm=1.0)


def pretrain(config: SideBySideConfig, rows: Sequence[Row]) -> None:
    """Pre-trains --num_pretraining_seeds models of each row.

    The rows differ in whether they have the loss of the next sentence. Writes
    the weights, and the scores on held-out text during the training.
    """
    from copies import STEPS_AT_ONCE, Copies

    tasks = [row.task(config) for row in rows]
    task = max(tasks, key=lambda task: len(task.loss_names))
    phases, num_steps = [], 0
    for length, until in config.phases:
        steps = round_steps(until * rows[0].num_steps / config.num_train_steps)
        if steps > num_steps:
            arrays = load(config, f"arrays/pretraining-{length}.npz")
            phases.append((causal(task, arrays), steps - num_steps))
            num_steps = steps
    held_out = causal(task, load(config, "arrays/held_out.npz"))
    each = config.num_pretraining_seeds
    copies = Copies(task, [*range(1, each + 1)] * len(rows))
    parts = np.repeat(
        [[name in own.loss_names for name in task.loss_names] for own in tasks],
        each,
        axis=0,
    )
    warmup = round(config.warmup_proportion * num_steps)
    every = max(1, num_steps // STEPS_AT_ONCE // MEASUREMENTS) * STEPS_AT_ONCE
    curves: list[list[dict[str, float]]] = [[] for _ in rows]
    start = time.perf_counter()
    for step, _ in copies.train(
        phases,
        config.train_batch_size,
        optimizer(config.learning_rate, num_steps, warmup),
        parts,
    ):
        if step % every and step != num_steps:
            continue
        found = copies.predict(held_out, EVAL_BATCH_SIZE)
        seconds = time.perf_counter() - start
        for number in range(len(copies.seeds)):
            own, seed = divmod(number, each)
            scores = tasks[own].score({k: v[number] for k, v in found.items()})
            curves[own].append({"step": step, "seed": seed + 1, **scores})
        losses = [f"{curve[-1]['loss']:.3f}" for curve in curves]
        print(f"step {step}, {seconds:.0f} s, loss {', '.join(losses)}")
    weights = {n: np.asarray(w) for n, w in copies.weights().items()}
    for own, row in enumerate(rows):
        path = os.path.join(config.output_dir, f"curves/{row.pretrained}.json")
        files.makedirs(os.path.dirname(path))
        record = {"seconds": seconds, "curve": curves[own]}
        files.write_text(path, json.dumps(record, indent=2) + "\n")
        kept = {n: w[own * each : (own + 1) * each] for n, w in weights.items()}
        save(config, f"weights/{row.pretrained}.npz", kept)


def fine_tune(
    config: SideBySideConfig, column: Column, rows: Sequence[Row]
) -> None:
    """Fine-tunes all models of some rows with all seeds, and predicts."""
    from copies import Copies

    found = [load(config, f"weights/{row.pretrained}.npz") for row in rows]
    start = {
        name: np.concatenate([weights[name] for weights in found])
        for name in found[0]
        if name.startswith("bert/")
    }
    each, seeds = config.num_pretraining_seeds, config.num_seeds
    models = [m for m in range(each * len(rows)) for _ in range(seeds)]
    copies = Copies(
        column.task(rows[0].config(config), rows[0].bilstm),
        [*range(1, seeds + 1)] * (each * len(rows)),
        start,
        models,
    )
    arrays = trimmed(load(config, f"arrays/{column.title}-train.npz"))
    total = config.num_train_epochs * len(arrays["input_ids"])
    steps = min(total, config.max_examples) / config.fine_tuning_batch_size
    num_steps = round_steps(steps)
    began = time.perf_counter()
    training = copies.train(
        [(arrays, num_steps)],
        config.fine_tuning_batch_size,
        optimizer(config.fine_tuning_learning_rate, num_steps, num_steps // 10),
    )
    *_, (_, losses) = training
    dev = trimmed(load(config, f"arrays/{column.title}-dev.npz"))
    predictions = copies.predict(dev, EVAL_BATCH_SIZE)
    seconds = time.perf_counter() - began
    print(
        f"{column.title}, {len(models)} models: {num_steps} steps, "
        f"{seconds:.0f} s, loss {losses.mean():.3f}"
    )
    for number, row in enumerate(rows):
        own = slice(number * each * seeds, (number + 1) * each * seeds)
        kept = {name: values[own] for name, values in predictions.items()}
        save(config, predictions_name(column, row), kept)


# The table.


def write_table(
    config: SideBySideConfig, rows: Mapping[str, Row], table: Table
) -> None:
    """Scores the predictions; writes the table, and the curves."""
    cells: Cells = {}
    scores: Scores = {}
    if config.table == "size":
        for name, row in rows.items():
            last = curve_of(config, row)[-config.num_pretraining_seeds :]
            losses = [found["masked_lm_loss"] for found in last]
            cells[name, ablation_size.PERPLEXITY] = [*map(math.exp, losses)]
    for column in columns_of(config):
        for name, row in rows.items():
            found = load(config, predictions_name(column, row))
            every = [
                column.score({n: values[k] for n, values in found.items()})
                for k in range(len(next(iter(found.values()))))
            ]
            models = np.reshape(every, (-1, config.num_seeds)).tolist()
            scores[name, column.title] = dict(enumerate(models, 1))
    cells |= cells_of(scores)
    path = os.path.join(config.output_dir, table.name)
    text = markdown(table, cells)
    files.write_text(f"{path}.md", text)
    files.write_text(f"{path}.csv", comma_separated(table, cells))
    files.write_text(f"{path}_curves.csv", curves(config, rows))
    print(f"{text}\nIt is in {path}.md.")
    draw(table, cells, f"{path}.png")


def curve_of(config: SideBySideConfig, row: Row) -> list[dict[str, float]]:
    path = os.path.join(config.output_dir, f"curves/{row.pretrained}.json")
    return files.read_json(path)["curve"]


def curves(config: SideBySideConfig, rows: Mapping[str, Row]) -> str:
    """Returns a line for each measurement of each pre-training, as CSV."""
    lines = [
        {"model": row.pretrained, **found}
        for row in rows.values()
        for found in curve_of(config, row)
    ]
    names = dict.fromkeys(name for line in lines for name in line)
    text = io.StringIO()
    writer = csv.DictWriter(text, [*names], lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


def require_same_settings(config: SideBySideConfig) -> None:
    """Records the settings; raises InputError if the folder has others.

    The names of files are not compared: they may differ between machines, and
    the arrays keep the contents.
    """
    may_differ = re.compile(
        r".*(_file|_dir)$|do$|rows$|tasks$|equal_compute$"
    ).fullmatch
    values = dataclasses.asdict(config).items()
    settings = {name: v for name, v in values if not may_differ(name)}
    path = os.path.join(config.output_dir, "settings.json")
    text = json.dumps(settings, indent=2) + "\n"
    if not files.exists(path):
        files.makedirs(config.output_dir)
        files.write_text(path, text)
        return
    known, now = files.read_json(path), json.loads(text)
    for name, value in now.items():
        if known.get(name) != value:
            raise InputError(
                f"{path} has {name} {known.get(name)!r}, not {value!r}. Choose "
                "another --output_dir."
            )


def run(config: SideBySideConfig) -> None:
    """Runs the steps of --do."""
    for name in ("full", "also"):
        if getattr(config, name):
            raise InputError(f"--{name} does not go with this program.")
    if "training" in config.do:
        require_jax()
    config = config.resolved()
    rows, table = rows_of(config)
    require_same_settings(config)
    if "data" in config.do:
        ablation_size.require_apart(config)
        write_data(config)
    if "training" in config.do:
        train(config, rows)
    if "table" in config.do:
        write_table(config, rows, table)


if __name__ == "__main__":
    cli.main(run)
