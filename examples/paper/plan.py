"""The options of the paper's programs, and the runs that they plan.

The defaults are small; --full has the paper's values (sections 4.1 and 5.2,
appendices A.2 and A.3) and prints the commands. The fine-tuning learning rate
of 3e-5 is in the middle of the four that the paper tried.
"""

import dataclasses
import glob
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Self

from runs import Made, Run
from tables import Goal

from bert_tf import BertConfig
from bert_tf.base import files
from bert_tf.base.options import Option, OptionError, Options, declared, option
from bert_tf.errors import InputError, listed, wrong_value
from bert_tf.tokenization.vocabulary_file import load_vocab

# The sizes of the published vocabularies.
UNCASED_VOCAB_SIZE, CASED_VOCAB_SIZE = 30_522, 28_996
# Folder -> the paper's heading, and the metric of its table 5, or GLUE's for
# tasks that the table lacks.
GLUE = {
    "MNLI": ("MNLI-m", "eval_accuracy"),
    "QNLI": ("QNLI", "eval_accuracy"),
    "MRPC": ("MRPC", "eval_accuracy"),
    "SST-2": ("SST-2", "eval_accuracy"),
    "QQP": ("QQP", "eval_accuracy"),
    "RTE": ("RTE", "eval_accuracy"),
    "CoLA": ("CoLA", "eval_mcc"),
    "STS-B": ("STS-B", "eval_spearman"),
}
# The usual name of a file of CoNLL-2003 -> patterns of other names.
CONLL_FILES = {"eng.train": ["*train*"], "eng.testa": ["*dev*", "*valid*"]}
# Options that do not go with --full.
NOT_FULL = (
    "first_seq_length",
    "first_share",
    "max_seq_length",
    "num_train_steps",
    "warmup_proportion",
)
# The ends of the names of options that must be above 0.
POSITIVE = ("learning_rate", "num_train_epochs", "initializer_range")


def sized(help: str, small: Any, full: Any = None, **limits: Any) -> Any:
    """Declares an option with one default, and another one with --full."""
    defaults = f"Default: {small}"
    if full is not None:
        defaults += f"; with --full {full}"
    known = Option(f"{help} {defaults}.", **limits)
    metadata = {"option": known, "defaults": (small, full)}
    return dataclasses.field(default=None, metadata=metadata)


def length_option(small: int) -> Any:
    # A published model has 512 positions, and two texts at least five tokens.
    return sized("Length of the sequences.", small, at_least=5, at_most=512)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PaperOptions(Options):
    """The options of all programs."""

    input_file: str = option(
        "Text to pre-train on, one sentence per line with blank lines between "
        "documents: globs, separated by commas."
    )
    vocab_file: str | None = option(
        "Vocabulary file. Default: one of --vocab_size is learned.",
        default=None,
    )
    vocab_size: int | None = sized(
        "Size of a learned vocabulary.", 2000, UNCASED_VOCAB_SIZE, at_least=6
    )
    do_lower_case: bool = option(
        "Whether the vocabulary is uncased.", default=True
    )
    dupe_factor: int | None = sized(
        "Number of copies of the text, each masked differently.",
        *(5, 10),
        at_least=1,
    )
    max_seq_length: int | None = length_option(32)
    first_seq_length: int | None = sized(
        "Length of the sequences in the first steps, if it is shorter. With "
        "short sequences, models learn sooner which words belong together.",
        32,
        at_least=8,
    )
    first_share: float | None = sized(
        "Share of the steps that have --first_seq_length. The others teach the "
        "new positions; a few such steps are worse than none.",
        *(0.5, 0.9),
        at_least=0.0,
        at_most=1.0,
    )
    num_train_steps: int | None = sized(
        "Steps of pre-training.", 8000, at_least=1
    )
    train_batch_size: int | None = sized(
        "Examples per step of pre-training.", 64, 256, at_least=1
    )
    learning_rate: float | None = sized(
        "Learning rate of pre-training.", 1e-3, 1e-4
    )
    initializer_range: float | None = sized(
        "Standard deviation of the initial weights. With BERT's, narrow models "
        "learn only word frequencies for thousands of steps.",
        *(0.05, 0.02),
    )
    dropout_rate: float | None = sized(
        "Dropout rate of the models. Short runs need no dropout.",
        *(0.0, 0.1),
        at_least=0.0,
        at_most=1.0,
    )
    warmup_proportion: float | None = sized(
        "Fraction of the pre-training steps in which the learning rate rises. "
        "With 0.1, models of four layers and more may never learn.",
        0.25,
        at_least=0.0,
        at_most=1.0,
    )
    num_pretraining_seeds: int = option(
        "Number of pre-trainings of each model. With several, tests compare "
        "them, each by the mean of its fine-tunings.",
        default=1,
        at_least=1,
    )
    num_seeds: int | None = sized(
        "Number of fine-tunings of each pre-trained model per task.",
        *(3, 5),
        at_least=1,
    )
    num_train_epochs: float | None = sized("Epochs of fine-tuning.", 3.0, 3.0)
    fine_tuning_batch_size: int | None = sized(
        "Examples per step of fine-tuning.", 32, 32, at_least=1
    )
    fine_tuning_learning_rate: float | None = sized(
        "Learning rate of fine-tuning.", 2.5e-4, 3e-5
    )
    max_examples: int | None = sized(
        "Largest number of examples of a fine-tuning, summed over its epochs; "
        "larger tasks get fewer epochs. No limit with --full.",
        30_000,
        at_least=1,
    )
    rows: tuple[str, ...] = option(
        "The rows to fill, as in --rows='No NSP,+ BiLSTM' or "
        "--rows=80/10/10,100/0/0. All by default.",
        default=(),
    )
    output_dir: str = option("Folder of tables and runs.")
    also: tuple[str, ...] = option(
        "More flags of everything that trains, separated by commas: "
        "--also=--mixed_precision=bfloat16,--jit_compile=false.",
        default=(),
    )
    full: bool = option(
        "Whether to print the commands for the paper's sizes, and run nothing.",
        default=False,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in declared(type(self)):
            value = getattr(self, name)
            if name.endswith(POSITIVE) and value is not None and value <= 0:
                raise OptionError(f"--{name} must be above 0; got {value}")

    def resolved(self) -> Self:
        """Returns the options with the defaults of their size.

        Raises:
          InputError: The text does not exist, or an option does not go with
            --full.
        """
        for name in NOT_FULL:
            if self.full and getattr(self, name) is not None:
                raise InputError(
                    f"--{name} does not go with --full, which has the paper's "
                    "lengths, steps and warm-up."
                )
        if self.input_file and not self.full:
            files.expand(self.input_file, "input_file")
        values = {}
        for field in dataclasses.fields(self):
            defaults = field.metadata.get("defaults")
            if defaults and getattr(self, field.name) is None:
                values[field.name] = defaults[self.full]
        if self.full and not self.vocab_size and not self.do_lower_case:
            values["vocab_size"] = CASED_VOCAB_SIZE
        return dataclasses.replace(self, **values)

    @property
    def phases(self) -> tuple[tuple[int, int], ...]:
        """The lengths of sequences, and the step up to which each is used."""
        if self.full:
            return (128, 900_000), (512, 1_000_000)
        last = self.max_seq_length, self.num_train_steps
        change = round(self.first_share * self.num_train_steps)
        if self.first_seq_length >= self.max_seq_length or not change:
            return (last,)
        if change == self.num_train_steps:
            return ((self.first_seq_length, change),)
        return (self.first_seq_length, change), last

    @property
    def warmup_steps(self) -> int:
        if self.full:
            return 10_000
        return round(self.warmup_proportion * self.num_train_steps)

    @property
    def more(self) -> dict[str, object]:
        """The flags of --also."""
        given: dict[str, object] = {}
        for word in self.also:
            name, equals, value = word.removeprefix("--").partition("=")
            given[name] = value if equals else True
            if name in {*declared(type(self)), "random_seed"}:
                raise InputError(
                    f"--also must not have --{name}, which this program sets; "
                    "--num_seeds and --num_pretraining_seeds are the numbers "
                    "of seeds."
                )
        return given

    def chosen(self, rows: Iterable[str]) -> list[str]:
        """Returns the names of --rows, or all, in the order of the table.

        Raises:
          InputError: The table has no such row.
        """
        names = [*rows]
        for name in self.rows:
            if name not in names:
                raise wrong_value("--rows", f"some of {listed(names)}", name)
        return [name for name in names if name in (self.rows or names)]

    @property
    def note(self) -> str:
        """The note below a table of pre-trained models."""
        if self.num_pretraining_seeds > 1:
            return ""
        return (
            "Each model was pre-trained once; the deviations do not include "
            "the variance of pre-training (--num_pretraining_seeds)."
        )


def tasks_option(*names: str) -> Any:
    return option(
        f"Some of {', '.join(GLUE)}. Of the default, those without a folder "
        "are left out.",
        default=names,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class GlueOptions(PaperOptions):
    """The options of the programs that fine-tune on sentences."""

    data_dir: str | None = option(
        "Folder of GLUE's folders: MRPC, SST-2 ...", default=None
    )
    tasks: tuple[str, ...] = tasks_option("MNLI")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpanOptions(PaperOptions):
    """The options of the programs that find entities and answers in texts."""

    conll_dir: str | None = option("Folder of CoNLL-2003.", default=None)
    squad_dir: str | None = option("Folder of SQuAD 1.1.", default=None)
    squad_seq_length: int | None = sized(
        "Length of SQuAD's sequences.", 192, 384, at_least=5, at_most=512
    )


def model_option(small: str) -> Any:
    help = "Size of the models, as in run_pretraining.py."
    return sized(help, small, "base")


@dataclasses.dataclass(frozen=True, kw_only=True)
class EntityOptions(PaperOptions):
    """The options of the programs that find entities."""

    conll_dir: str | None = option("Folder of CoNLL-2003.", default=None)
    lstm_size: int | None = sized("Size of the LSTMs.", 256, 768, at_least=1)
    feature_learning_rate: float = option(
        "Learning rate of the LSTMs.", default=1e-3
    )
    feature_num_train_epochs: float = option(
        "Epochs of the LSTMs.", default=3.0
    )


# Pre-training.


def vocabulary(config: PaperOptions) -> Made | str:
    """Returns the user's vocabulary, or one learned from the text."""
    if config.vocab_file:
        return config.vocab_file
    given = {
        "input_file": config.input_file,
        "vocab_size": config.vocab_size,
        "do_lower_case": str(config.do_lower_case).lower(),
    }
    run = Run("vocabulary", "create_vocab.py", given, "vocab.txt")
    return Made(run, "vocab.txt")


def records(
    config: PaperOptions, text: str, length: int, **changes: object
) -> Made:
    """Returns the pre-training examples of a text."""
    given = {
        "input_file": text,
        "vocab_file": vocabulary(config),
        "do_lower_case": str(config.do_lower_case).lower(),
        "max_seq_length": length,
        "max_predictions_per_seq": predictions(length),
        "dupe_factor": config.dupe_factor,
        **changes,
    }
    name, script = "examples.tfrecord", "create_pretraining_data.py"
    if "mask_share" in changes:
        script = "examples/paper/masked_examples.py"
    return Made(Run("examples", script, given, name), name)


def predictions(length: int) -> int:
    """Returns the number of masked tokens: 15 %, but 20 for 128, as Google."""
    return 20 if length == 128 else max(1, round(0.15 * length))


def pretrained(
    config: PaperOptions,
    size: str,
    *,
    shares: Mapping[str, object] | None = None,
    model: Mapping[str, object] | None = None,
    held_out: str | None = None,
) -> list[Made]:
    """Returns --num_pretraining_seeds models pre-trained on --input_file.

    The first one has the script's default seed.

    Args:
      config: The options.
      size: The value of --model_size.
      shares: The flags of masked_examples.py, if not the default.
      model: More flags of run_pretraining.py.
      held_out: Text to evaluate on.

    Raises:
      InputError: The size is unknown.
    """
    given: dict[str, object] = {"model_size": size}
    if not config.full:  # BERT-Base has its own.
        given = {"bert_config_file": config_file(config, size)}
    numbers = range(2, config.num_pretraining_seeds + 1)
    seeds = [{}, *({"random_seed": number} for number in numbers)]
    flags = {**given, **(model or {}), **config.more}
    return [
        _pretrained(config, shares or {}, flags | seed, held_out)
        for seed in seeds
    ]


def config_file(config: PaperOptions, size: str) -> str:
    """Writes the configuration of a model; returns the path."""
    vocab_size = config.vocab_size
    if config.vocab_file:
        vocab_size = len(load_vocab(config.vocab_file))
    model = dataclasses.replace(
        BertConfig.from_name(size, vocab_size),
        initializer_range=config.initializer_range,
        hidden_dropout_prob=config.dropout_rate,
        attention_probs_dropout_prob=config.dropout_rate,
    )
    path = os.path.join(config.output_dir, "configs", f"{size}.json")
    files.makedirs(os.path.dirname(path))
    files.write_text(path, model.to_json_string())
    return path


def _pretrained(
    config: PaperOptions,
    data: Mapping[str, object],
    changes: Mapping[str, object],
    held_out: str | None,
) -> Made:
    """Returns a model, given more flags of data creation and of training."""
    run, last = None, config.phases[-1][1]
    for length, step in config.phases:
        given = {
            "input_file": records(config, config.input_file, length, **data),
            "vocab_file": vocabulary(config),
            "do_train": True,
            "max_seq_length": length,
            "max_predictions_per_seq": predictions(length),
            "train_batch_size": config.train_batch_size,
            "learning_rate": config.learning_rate,
            "num_train_steps": last,
            "num_warmup_steps": config.warmup_steps,
            **changes,
        }
        if step < last:
            given["stop_at_step"] = step
        elif held_out:
            # The same words are masked for all models.
            given["eval_input_file"] = records(
                config, held_out, length, dupe_factor=1, **data
            )
            given |= {"do_eval": True, "max_eval_steps": 0}
        run = Run("pretraining", "run_pretraining.py", given, continues=run)
    return Made(run, "release")


# Fine-tuning.


class Task(NamedTuple):
    """A task to fine-tune on.

    Attributes:
      title: The heading of its column.
      name: The beginning of the names of its runs.
      script: The script that fine-tunes.
      flags: The flags that name the data, and more flags of the script.
      metric: The name of the score in the script's results.
      scale: The factor that makes the score a percentage.
      rows: The number of training examples; None with --full.
    """

    title: str
    name: str
    script: str
    flags: Mapping[str, object]
    metric: str
    scale: float = 100.0
    rows: int | None = None

    def with_flags(self, **flags: object) -> Self:
        return self._replace(flags={**self.flags, **flags})

    def on_bilstm(self) -> Self:
        """Returns the task with a BiLSTM below the head."""
        name = self.script.replace("run_", "bilstm_")
        return self._replace(script=f"examples/paper/{name}")

    def goal(
        self,
        row: str,
        config: PaperOptions,
        model: Made | str,
        number: int,
        seed: int,
    ) -> Goal:
        """Returns a fine-tuning of a model, for a row of a table.

        `number` is the number of its pre-training, from 1.
        """
        length = 128 if config.full else config.max_seq_length
        given = {
            "init_checkpoint": model,
            "do_train": True,
            "do_eval": True,
            "max_seq_length": length,
            "train_batch_size": config.fine_tuning_batch_size,
            "learning_rate": config.fine_tuning_learning_rate,
            "num_train_epochs": config.num_train_epochs,
            "random_seed": seed,
            **self.flags,
            **config.more,
        }
        if config.max_examples and self.rows:
            most = round(config.max_examples / self.rows, 4)
            given["num_train_epochs"] = min(most, given["num_train_epochs"])
        if self.script.endswith("squad.py"):
            given["do_predict"] = True
            given["max_seq_length"] = config.squad_seq_length
        run = Run(f"{self.name}-seed-{seed}", self.script, given)
        return Goal(
            *(row, self.title, number, seed, run),
            lambda found: self.scale * found[self.metric],
        )


def fine_tunings(
    row: str,
    config: PaperOptions,
    models: Sequence[Made | str],
    tasks: Iterable[Task],
) -> list[Goal]:
    """Returns the goals of a row, seed by seed."""
    return [
        task.goal(row, config, model, number, seed)
        for seed in range(1, config.num_seeds + 1)
        for number, model in enumerate(models, 1)
        for task in tasks
    ]


def glue_tasks(config: GlueOptions) -> list[Task]:
    """Returns the --tasks; prints those that are left out.

    Raises:
      InputError: A task is unknown, or has no files although it was named.
    """
    found = []
    named = config.tasks != type(config).tasks
    if named and config.tasks and not (config.data_dir or config.full):
        raise InputError("--tasks needs --data_dir, the folder of the tasks.")
    for name in config.tasks:
        if name not in GLUE:
            raise wrong_value("--tasks", f"some of {listed(GLUE)}", name)
        title, metric = GLUE[name]
        folder = _folder(config, name, "data_dir", "glue_data")
        folder = folder and os.path.join(folder, name)
        dev = "dev_matched.tsv" if name == "MNLI" else "dev.tsv"
        wanted = {"train.tsv": (), dev: ()}
        remedy = ""
        if named:
            remedy = f"Correct --data_dir, or leave {name} out of --tasks."
        if inputs := _inputs(config, name, folder, wanted, remedy):
            task = Task(
                *(title, title.lower(), "run_classifier.py"),
                {"task_name": name.lower(), "data_dir": folder},
                metric,
                rows=_rows(config, inputs[0], "\n", headings=1),
            )
            found.append(task)
    if config.data_dir and config.tasks and not found:
        raise InputError(
            f"--data_dir={config.data_dir} has no files of "
            f"{listed(config.tasks)}. Pass tasks that it has in --tasks."
        )
    return found


def squad_tasks(config: Any) -> list[Task]:
    """Returns SQuAD 1.1; without --squad_dir, prints that it is left out."""
    folder = _folder(config, "SQuAD", "squad_dir", "squad")
    wanted = {
        f"{split}-v1.1.json": [f"{split}-v1.1*.json"]
        for split in ("train", "dev")
    }
    inputs = _inputs(config, "SQuAD", folder, wanted, "Correct --squad_dir.")
    if not inputs:
        return []
    train, dev = inputs
    data = {"train_file": train, "predict_file": dev}
    rows = _rows(config, train, '"question"')
    # Its official scores are percentages.
    return [Task("SQuAD", "squad", "run_squad.py", data, "eval_f1", 1.0, rows)]


def ner_tasks(config: Any) -> list[Task]:
    """Returns CoNLL-2003; without --conll_dir, prints that it is left out."""
    folder = _folder(config, "NER", "conll_dir", "conll2003")
    remedy = "Correct --conll_dir."
    inputs = _inputs(config, "NER", folder, CONLL_FILES, remedy)
    if not inputs:
        return []
    rows = _rows(config, inputs[0], "\n\n")
    data = {"data_dir": folder}
    return [Task("NER", "ner", "run_ner.py", data, "eval_f1", rows=rows)]


def feature_based(
    task: Task, config: Any, layers: str, size: str | None
) -> Task:
    """Returns a task of `ner_tasks` that uses a model's vectors as features.

    Args:
      task: Fine-tuning on entities.
      config: The options.
      layers: The value of --feature_layers.
      size: The size of the model; None for the user's checkpoint.

    Raises:
      InputError: The model has too few layers.
    """
    from bert_tf.kinds.vectors.features import CHOICES  # Imports Keras.

    least = CHOICES[layers].num_layers
    if size and BertConfig.from_name(size, 1).num_hidden_layers < least:
        raise wrong_value(
            "--model_size", f"of {least} layers or more, for {layers}", size
        )
    return task._replace(script="examples/paper/feature_ner.py").with_flags(
        feature_layers=layers,
        lstm_size=config.lstm_size,
        learning_rate=config.feature_learning_rate,
        num_train_epochs=config.feature_num_train_epochs,
    )


def _folder(config: Any, task: str, flag: str, usual: str) -> str | None:
    """Returns a task's folder, with --full the usual one, or None."""
    folder = getattr(config, flag)
    if folder is None and config.full:
        return usual
    if folder is None:
        print(f"{task} is left out: --{flag} was not passed.")
    return folder


def _inputs(
    config: PaperOptions,
    task: str,
    folder: str | None,
    wanted: Mapping[str, Iterable[str]],
    remedy: str,
) -> list[str]:
    """Returns the files of a task; none if it is left out.

    With --full the files need not exist.

    Args:
      config: The options.
      task: The name of the task.
      folder: Its folder, if there is one.
      wanted: As in `find_inputs`.
      remedy: What to do if a file is missing; "" leaves the task out.

    Raises:
      InputError: A file is missing, and there is a remedy.
    """
    if folder is None:
        return []
    if config.full:
        return [os.path.join(folder, usual) for usual in wanted]
    found, missing = find_inputs(folder, wanted)
    if not missing:
        return found
    if remedy:
        raise InputError(
            f"{task} needs {missing}, which does not exist. {remedy}"
        )
    print(f"{task} is left out: there is no {missing}.")
    return []


def find_inputs(
    folder: str, wanted: Mapping[str, Iterable[str]]
) -> tuple[list[str], str]:
    """Returns the files of a folder, and the first that is missing, or "".

    `wanted` has patterns of other names for the usual name of each file.
    """
    found = []
    for usual, patterns in wanted.items():
        paths = [
            path
            for pattern in (usual, *patterns)
            for path in sorted(glob.glob(os.path.join(folder, pattern)))
        ]
        if not paths:
            return found, os.path.join(folder, usual)
        found.append(paths[0])
    return found, ""


def _rows(
    config: PaperOptions, path: str, mark: str, headings: int = 0
) -> int | None:
    """Returns the number of examples of a file: how often it has the mark."""
    if config.full:
        return None
    return max(1, files.read_text(path).count(mark) - headings)
