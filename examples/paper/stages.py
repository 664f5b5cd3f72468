"""From text to a score: the runs that the paper's tables are made of."""

import glob
import os
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from absl import flags
from runs import Made, Run, Source
from settings import GLUE, Settings, also, value_or
from tables import Goal

from bert_tf import BertConfig, files
from bert_tf.errors import InputError

FLAGS = flags.FLAGS


def chance() -> str:
    """What is to be said below a table of models that are pre-trained."""
    if FLAGS.num_pretraining_seeds > 1:
        return ""
    return (
        "Each model was pre-trained once; what that owes to chance is in no "
        "deviation (--num_pretraining_seeds)."
    )


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
    seed: int,
    *,
    data: Mapping[str, object] | None = None,
    model: Mapping[str, object] | None = None,
    held_out: str | None = None,
) -> Run:
    """A model, pre-trained on --input_file.

    Args:
      how: The settings.
      size: As --model_size.
      seed: That of what is made with the model, from 1; there are
        --num_pretraining_seeds models, the first with the script's own seed.
      data: Further flags of create_pretraining_data.py.
      model: Further flags of run_pretraining.py.
      held_out: Text to evaluate on, if any.

    Raises:
      InputError: There is no such size.
    """
    BertConfig.from_name(size, how.vocab_size)
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
            **also(),
        }
        if turn := (seed - 1) % FLAGS.num_pretraining_seeds:
            given["random_seed"] = turn + 1
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


def release(how: Settings, size: str, seed: int, **more: object) -> Made:
    """What a pre-training leaves; the arguments are `pretraining`'s."""
    return Made(pretraining(how, size, seed, **more), "release")


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
            **also(),
        }
        if how.max_examples and self.rows:
            most = round(how.max_examples / self.rows, 4)
            given["num_train_epochs"] = min(most, given["num_train_epochs"])
        if how.max_examples is None:
            # Many runs of a large model: what is kept of each is little.
            given["keep_checkpoint_max"] = 1
        if self.script == "run_squad.py":
            given |= {"do_predict": True, "max_seq_length": how.squad_length}
        return Run(f"{self.title.lower()}-seed-{seed}", self.script, given)


class Kind(NamedTuple):
    """A column of a table: a task, and how it is fine-tuned on.

    Attributes:
      title: The column's heading.
      task: The task.
      changes: Further flags of its script.
    """

    title: str
    task: Task
    changes: Mapping[str, object] = {}


def fine_tunings(
    row: str,
    how: Settings,
    start: Callable[[int], Made | Source],
    kinds: Iterable[Kind],
) -> list[Goal]:
    """The goals of a row, seed by seed.

    Args:
      row: Its name.
      how: The settings.
      start: From a seed to the model whose weights are taken.
      kinds: The columns.
    """
    kinds = [*kinds]
    goals = []
    for seed in range(1, how.num_seeds + 1):
        model = start(seed)
        goals += [
            Goal(row, title, task.run(how, model, seed, **changes), seed)
            for title, task, changes in kinds
        ]
    return goals


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
        folder = _folder(name, "data_dir", FLAGS.data_dir, "glue_data")
        folder = folder and os.path.join(folder, name)
        dev = "dev_matched.tsv" if name == "MNLI" else "dev.tsv"
        inputs = _inputs(name, folder, {"train.tsv": (), dev: ()})
        if inputs:
            data = {"task_name": name.lower(), "data_dir": Source.of(folder)}
            rows = _rows(inputs[0], "\n", headings=1)
            task = Task(title, "run_classifier.py", data, metric, rows=rows)
            found.append(task)
    return found


def squad_tasks(folder: str | None) -> list[Task]:
    """SQuAD 1.1, if its files are in the folder; says so if they are not."""
    wanted = {
        "train-v1.1.json": ["train-v1.1*.json"],
        "dev-v1.1.json": ["dev-v1.1*.json"],
    }
    folder = _folder("SQuAD", "squad_dir", folder, "squad")
    inputs = _inputs("SQuAD", folder, wanted)
    if not inputs:
        return []
    train, dev = inputs
    data = {"train_file": Source.of(train), "predict_file": Source.of(dev)}
    rows = _rows(train, '"question"')
    # Its official scores are percentages.
    return [Task("SQuAD", "run_squad.py", data, "eval_f1", 1.0, rows)]


def ner_tasks(folder: str | None) -> list[Task]:
    """CoNLL-2003, if its files are in the folder; says so if they are not."""
    folder = _folder("NER", "conll_dir", folder, "conll2003")
    wanted = {
        "eng.train": ["*train*"],
        "eng.testa": ["*dev*", "*valid*"],
    }
    inputs = _inputs("NER", folder, wanted)
    if not inputs:
        return []
    data = {"data_dir": Source.of(folder)}
    rows = _rows(inputs[0], "\n\n")
    return [Task("NER", "run_ner.py", data, "eval_f1", rows=rows)]


def feature_flags(layers: str, size: str | None) -> dict[str, object]:
    """What run_ner.py is told to use a model's vectors as features.

    Args:
      layers: Those of --feature_layers.
      size: The model's, as --model_size; None if it is another's model.

    Raises:
      InputError: The model has too few layers.
    """
    if size and BertConfig.from_name(size, 1).num_hidden_layers < 4:
        raise InputError(
            f"expected --model_size of four layers or more, for {layers}. "
            f"Received: {size}"
        )
    return {
        "mode": "feature_based",
        "feature_layers": layers,
        "lstm_size": value_or("lstm_size", 768),
        "learning_rate": FLAGS.feature_learning_rate,
        "num_train_epochs": FLAGS.feature_num_train_epochs,
    }


def _folder(task: str, flag: str, folder: str | None, usual: str) -> str | None:
    """Returns the folder of a task, or None and says that it is left out.

    Args:
      task: The name of the task.
      flag: The name of the flag.
      folder: The value of the flag.
      usual: The folder of the commands that --full prints.
    """
    if folder is None and FLAGS.full:
        return usual
    if folder is None:
        print(f"{task} is left out: --{flag} is not given.")
    return folder


def _inputs(
    task: str, folder: str | None, wanted: Mapping[str, Iterable[str]]
) -> list[str]:
    """The files of a task in its folder.

    Args:
      task: Its name, to say that it is left out.
      folder: Where they are; None for a task that is left out.
      wanted: By a file's usual name, patterns of others that it may have.

    Returns:
      A file for each that is wanted, or nothing if one is not there. Where
      nothing is run they are not looked for.
    """
    if folder is None:
        return []
    if FLAGS.full:
        return [os.path.join(folder, usual) for usual in wanted]
    found = []
    for usual, patterns in wanted.items():
        paths = [
            path
            for pattern in (usual, *patterns)
            for path in sorted(glob.glob(os.path.join(folder, pattern)))
        ]
        if not paths:
            place = os.path.join(folder, usual)
            print(f"{task} is left out: there is no {place}.")
            return []
        found.append(paths[0])
    return found


def _rows(path: str, mark: str, headings: int = 0) -> int | None:
    """How many examples a file has, each with a mark."""
    if FLAGS.full:
        return None
    return max(1, files.read_text(path).count(mark) - headings)


def _predictions(length: int) -> int:
    """Masked tokens of an example: 15 %; of 128 the original's 20."""
    return 20 if length == 128 else max(1, round(0.15 * length))


def _word(value: bool) -> str:
    """A switch, as flags spell it."""
    return str(value).lower()
