"""From text to a score: the runs that the paper's tables are made of.

What all four programs can be told stands here, and how one of the paper's own
sizes is trained (--full).
"""

import dataclasses
import glob
import os
from collections.abc import Mapping
from typing import NamedTuple, Self

from absl import flags
from runs import Made, Run, Source

from bert_tf import files
from bert_tf.errors import InputError

FLAGS = flags.FLAGS
# They are flags of the program that asks for them; --help lists them there.
flags.disclaim_key_flags()


def define_flags() -> None:
    """Defines what the programs share."""
    flags.DEFINE_string(
        "input_file",
        None,
        "Text to pre-train on, as create_pretraining_data.py takes it: a "
        "sentence a line, blank lines between documents; globs, with commas.",
    )
    flags.DEFINE_string("output_dir", None, "Folder of tables and runs.")
    flags.DEFINE_string(
        "vocab_file",
        None,
        "WordPiece vocabulary; without it, one of --vocab_size is learned.",
    )
    flags.DEFINE_integer("vocab_size", 4000, "Words of a learned vocabulary.")
    flags.DEFINE_bool("do_lower_case", True, "Whether it is an uncased one.")
    flags.DEFINE_integer("dupe_factor", 5, "Passes over the text, as masked.")
    flags.DEFINE_integer("max_seq_length", 64, "Tokens of a sequence.")
    flags.DEFINE_integer("num_train_steps", 2000, "Steps of pre-training.")
    flags.DEFINE_integer("train_batch_size", 32, "Examples of such a step.")
    flags.DEFINE_float("learning_rate", 5e-4, "Rate of pre-training.")
    flags.DEFINE_integer(
        "num_seeds", 3, "Fine-tunings of each cell.", lower_bound=1
    )
    flags.DEFINE_float("num_train_epochs", 3.0, "Epochs of fine-tuning.")
    flags.DEFINE_integer("fine_tuning_batch_size", 32, "Examples of its steps.")
    flags.DEFINE_float("fine_tuning_learning_rate", 1e-4, "Rate of it.")
    flags.DEFINE_integer(
        "max_examples",
        10_000,
        "Examples that a fine-tuning sees at most, all epochs together; it has "
        "fewer epochs where there are more.",
        lower_bound=1,
    )
    flags.DEFINE_multi_string(
        "also",
        [],
        "What else all that trains is given, as it stands there: "
        "--also=--mixed_precision=bfloat16; more than once for more flags.",
    )
    flags.DEFINE_bool(
        "full", False, "Print the commands of the paper's sizes, run nothing."
    )


def define_model_flag(default: str) -> None:
    """Defines the size of a program that has one for all rows."""
    flags.DEFINE_string(
        "model_size", default, "Size of the models, as run_pretraining.py."
    )


def define_entity_flags() -> None:
    """Defines what finds entities: fine-tuned, and by LSTMs on features."""
    flags.DEFINE_string("conll_dir", None, "Folder of CoNLL-2003.")
    flags.DEFINE_integer("lstm_size", 256, "Size of the LSTMs.", lower_bound=1)
    flags.DEFINE_float("feature_learning_rate", 1e-3, "Rate of the LSTMs.")
    flags.DEFINE_float("feature_num_train_epochs", 3.0, "Epochs of the LSTMs.")


def define_task_flags(*names: str) -> None:
    """Defines the tasks of sentences.

    Args:
      *names: Those that the paper's table has.
    """
    flags.DEFINE_string(
        "data_dir", None, "Folder of GLUE's folders: MRPC, SST-2 ..."
    )
    flags.DEFINE_list(
        "tasks",
        list(names),
        f"Some of {', '.join(GLUE)}. Those without a folder are left out.",
    )


@dataclasses.dataclass(frozen=True)
class Settings:
    """How long, how much and how often.

    Attributes:
      phases: Length of sequences, and the step up to which they have it.
      warmup_steps: Steps in which the rate of pre-training rises.
      max_examples: As the flag; None for all epochs whatever they cost.
      squad_length: Tokens of a question and its text.
    """

    phases: tuple[tuple[int, int], ...]
    train_batch_size: int
    learning_rate: float
    warmup_steps: int
    dupe_factor: int
    vocab_size: int
    num_seeds: int
    num_train_epochs: float
    fine_tuning_batch_size: int
    fine_tuning_learning_rate: float
    max_examples: int | None
    squad_length: int

    @property
    def length(self) -> int:
        """Tokens of what is fine-tuned, but for SQuAD."""
        return self.phases[0][0]

    @classmethod
    def from_flags(cls) -> Self:
        """Those of the command line."""
        steps, length = FLAGS.num_train_steps, FLAGS.max_seq_length
        return cls(
            phases=((length, steps),),
            train_batch_size=FLAGS.train_batch_size,
            learning_rate=FLAGS.learning_rate,
            warmup_steps=steps // 10,
            dupe_factor=FLAGS.dupe_factor,
            vocab_size=FLAGS.vocab_size,
            num_seeds=FLAGS.num_seeds,
            num_train_epochs=FLAGS.num_train_epochs,
            fine_tuning_batch_size=FLAGS.fine_tuning_batch_size,
            fine_tuning_learning_rate=FLAGS.fine_tuning_learning_rate,
            max_examples=FLAGS.max_examples,
            squad_length=3 * length,
        )


# Sections 4.1 and 5.2 and appendices A.2 and A.3. Of the four rates that the
# paper chose from by the development set, 3e-5 is one in the middle.
FULL = Settings(
    phases=((128, 900_000), (512, 1_000_000)),
    train_batch_size=256,
    learning_rate=1e-4,
    warmup_steps=10_000,
    dupe_factor=10,
    vocab_size=30_522,
    num_seeds=5,
    num_train_epochs=3.0,
    fine_tuning_batch_size=32,
    fine_tuning_learning_rate=3e-5,
    max_examples=None,
    squad_length=384,
)


def settings() -> Settings:
    """Those of the command line, or the paper's with --full.

    Raises:
      InputError: There is no such text.
    """
    if FLAGS.full:
        return FULL
    if FLAGS.input_file:
        files.expand(FLAGS.input_file, "input_file")
    return Settings.from_flags()


def model_size() -> str:
    """The one of all rows: BERT-Base with --full."""
    return "base" if FLAGS.full else FLAGS.model_size


def vocabulary(how: Settings) -> Source | Made:
    """The user's, or one learned from the text."""
    if FLAGS.vocab_file:
        return Source.of(FLAGS.vocab_file)
    given = {
        "input_file": Source.of(FLAGS.input_file),
        "vocab_size": how.vocab_size,
        "do_lower_case": _word(FLAGS.do_lower_case),
    }
    run = Run("vocabulary", "create_vocab.py", given, "vocab.txt")
    return Made(run, "vocab.txt")


def records(text: str, how: Settings, length: int, **changes: object) -> Made:
    """Examples of a text.

    Args:
      text: As --input_file.
      how: The settings.
      length: Tokens of an example.
      **changes: Flags of create_pretraining_data.py.
    """
    given = {
        "input_file": Source.of(text),
        "vocab_file": vocabulary(how),
        "do_lower_case": _word(FLAGS.do_lower_case),
        "max_seq_length": length,
        "max_predictions_per_seq": _predictions(length),
        "dupe_factor": how.dupe_factor,
        **changes,
    }
    name = "examples.tfrecord"
    return Made(
        Run("examples", "create_pretraining_data.py", given, name), name
    )


def pretraining(
    how: Settings,
    size: str,
    *,
    data: Mapping[str, object] | None = None,
    model: Mapping[str, object] | None = None,
    held_out: str | None = None,
) -> Run:
    """A model, pre-trained on --input_file.

    Args:
      how: The settings.
      size: As --model_size.
      data: Further flags of create_pretraining_data.py.
      model: Further flags of run_pretraining.py.
      held_out: Text to evaluate on, if any.
    """
    run, last = None, how.phases[-1][1]
    for length, step in how.phases:
        made = records(FLAGS.input_file, how, length, **(data or {}))
        given = {
            "input_file": made,
            "model_size": size,
            "vocab_file": vocabulary(how),
            "do_train": True,
            "max_seq_length": length,
            "max_predictions_per_seq": _predictions(length),
            "train_batch_size": how.train_batch_size,
            "learning_rate": how.learning_rate,
            "num_train_steps": last,
            "num_warmup_steps": how.warmup_steps,
            **(model or {}),
            **_also(),
        }
        if step < last:
            given["stop_at_step"] = step
        elif held_out:
            # The same words are masked in every row.
            given["eval_input_file"] = records(
                held_out, how, length, dupe_factor=1, **(data or {})
            )
            given |= {"do_eval": True, "max_eval_steps": 0}
        run = Run("pretraining", "run_pretraining.py", given, continues=run)
    return run


class Task(NamedTuple):
    """A task to fine-tune on.

    Attributes:
      title: The paper's heading.
      script: What fine-tunes.
      data: Flags that name the data.
      metric: The score, in the script's results.
      scale: What makes it a percentage.
      rows: Number of training examples; None if it does not matter.
    """

    title: str
    script: str
    data: Mapping[str, object]
    metric: str
    scale: float = 100.0
    rows: int | None = None

    def read(self, results: Mapping[str, float]) -> float:
        """The score, in percent."""
        return self.scale * results[self.metric]

    def run(
        self,
        how: Settings,
        model: Made | Source,
        seed: int,
        **changes: object,
    ) -> Run:
        """A fine-tuning.

        Args:
          how: The settings.
          model: Whose weights it starts from.
          seed: It decides the new weights, dropout and the order.
          **changes: Further flags of the script.
        """
        given = {
            **self.data,
            "init_checkpoint": model,
            "do_train": True,
            "do_eval": True,
            "max_seq_length": how.length,
            "train_batch_size": how.fine_tuning_batch_size,
            "learning_rate": how.fine_tuning_learning_rate,
            "num_train_epochs": how.num_train_epochs,
            "random_seed": seed,
            **changes,
            **_also(),
        }
        if how.max_examples and self.rows:
            most = round(how.max_examples / self.rows, 4)
            given["num_train_epochs"] = min(most, given["num_train_epochs"])
        if self.script == "run_squad.py":
            given |= {"do_predict": True, "max_seq_length": how.squad_length}
        return Run(f"{self.title.lower()}-seed-{seed}", self.script, given)


# The folder of a task, the paper's heading, and the score of its table 5; for
# those that it lacks, the one of GLUE.
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


def glue_tasks() -> list[Task]:
    """Those of --tasks that are there; says which are left out.

    Raises:
      InputError: A name is unknown.
    """
    found = []
    for name in FLAGS.tasks:
        if name not in GLUE:
            raise InputError(
                f"expected --tasks among {', '.join(GLUE)}. Received: {name}"
            )
        title, metric = GLUE[name]
        folder = os.path.join(FLAGS.data_dir or "glue_data", name)
        train = os.path.join(folder, "train.tsv")
        if not FLAGS.full and not files.exists(train):
            print(f"{name} is left out: there is no {train}.")
            continue
        data = {"task_name": name.lower(), "data_dir": Source.of(folder)}
        rows = None if FLAGS.full else _count(train, "\n") - 1
        found.append(Task(title, "run_classifier.py", data, metric, rows=rows))
    return found


def squad_tasks(folder: str | None) -> list[Task]:
    """SQuAD 1.1, if its files are in the folder; says so if they are not."""
    folder = folder or "squad"
    names = [
        _one_file(folder, f"{split}-v1.1*.json", f"{split}-v1.1.json")
        for split in ("train", "dev")
    ]
    if None in names:
        print(f"SQuAD is left out: there is no train-v1.1.json in {folder}.")
        return []
    train, dev = names
    data = {"train_file": Source.of(train), "predict_file": Source.of(dev)}
    rows = None if FLAGS.full else _count(train, '"question"')
    # Its official scores are percentages.
    return [Task("SQuAD", "run_squad.py", data, "eval_f1", 1.0, rows)]


def ner_tasks(folder: str | None) -> list[Task]:
    """CoNLL-2003, if its files are in the folder; says so if they are not."""
    folder = folder or "conll2003"
    train = _one_file(folder, "*train*", "eng.train")
    if train is None:
        print(f"NER is left out: there is no eng.train in {folder}.")
        return []
    rows = None if FLAGS.full else _count(train, "\n\n")
    data = {"data_dir": Source.of(folder)}
    return [Task("NER", "run_ner.py", data, "eval_f1", rows=rows)]


def feature_flags(layers: str) -> dict[str, object]:
    """What run_ner.py is told to use a model's vectors as features.

    Args:
      layers: Those of --feature_layers.
    """
    return {
        "mode": "feature_based",
        "feature_layers": layers,
        "lstm_size": 768 if FLAGS.full else FLAGS.lstm_size,
        "learning_rate": FLAGS.feature_learning_rate,
        "num_train_epochs": FLAGS.feature_num_train_epochs,
    }


def _one_file(folder: str, pattern: str, usual: str) -> str | None:
    """The file of a folder; by its usual name where nothing is run."""
    if FLAGS.full:
        return os.path.join(folder, usual)
    return next(iter(sorted(glob.glob(os.path.join(folder, pattern)))), None)


def _count(path: str, mark: str) -> int:
    """How often something stands in a file."""
    return max(1, files.read_text(path).count(mark))


def _predictions(length: int) -> int:
    """Masked tokens of an example: one in seven, 20 of 128 as the paper's."""
    return 20 if length == 128 else max(1, round(0.15 * length))


def _also() -> dict[str, object]:
    """The flags of --also."""
    pairs = (word.removeprefix("--").partition("=") for word in FLAGS.also)
    return {name: value if equals else True for name, equals, value in pairs}


def _word(value: bool) -> str:
    """A switch, as flags spell it."""
    return str(value).lower()
