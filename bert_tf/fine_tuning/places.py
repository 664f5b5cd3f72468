"""Where a run starts and where it goes: what the flags of places turn into.

As in `bert_tf/flags.py`, TensorFlow is imported where it is needed: --help
shall not wait for it.
"""

import dataclasses
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from absl import flags, logging

from bert_tf import files
from bert_tf import flags as bert_flags
from bert_tf.errors import InputError
from bert_tf.fine_tuning.command_line import given, selects
from bert_tf.interop.pretrained import TRAINED_WITH

if TYPE_CHECKING:
    import keras

    from bert_tf.fine_tuning.start import Start
    from bert_tf.serving.served import Served
    from bert_tf.training.estimator import Estimator

FLAGS = flags.FLAGS

# What shapes a model beside its task and its data. A script need not have all.
_SETTINGS = (
    *("init_checkpoint", "max_seq_length", "mixed_precision"),
    *("warmup_proportion", "optimizer", "adam_bias_correction"),
    *("weight_decay_rate", "max_grad_norm"),
    *("num_frozen_layers", "layer_rate_decay"),
    *("class_weights", "label_smoothing", "head_dropout"),
    *("doc_stride", "max_query_length"),
    *("eval_steps", "save_best", "early_stopping_patience"),
)

# What the trainings of a search differ in.
_SEARCHED = ("train_batch_size", "learning_rate", "num_train_epochs")

# What scores depend on besides the development set: with other values, another
# checkpoint or training may be the best.
_SCORED_WITH = (
    *("scorer", "n_best_size", "max_answer_length"),
    "null_score_diff_threshold",
)


def find_start(*heads: str) -> "Start":
    """What the flags of `command_line.define_flags` start from.

    To evaluate or predict, the release of an earlier run will do. An export
    without a training takes from there, too, what it was trained with.

    Args:
      *heads: What the models of the script have on top: some of
        `interop.pretrained.HEADS`.

    Raises:
      InputError: There is nothing to start from, or what is to be used
        without a training is a model of another task.
    """
    from bert_tf.fine_tuning import output_folder, runs, start

    checkpoint, folder = FLAGS.init_checkpoint, FLAGS.output_dir
    if not FLAGS.do_train:
        release = os.path.join(folder, runs.RELEASE)
        if files.exists(os.path.join(release, f"{runs.WEIGHTS}.index")):
            # What lies in the folder goes before the checkpoint that it came
            # from.
            checkpoint = release
        elif not (
            checkpoint
            or FLAGS.bert_config_file
            or output_folder.is_trained(folder)
        ):
            # Where there is no model, nobody misses its configuration.
            raise runs.no_model(folder)
    found = start.find_start(
        checkpoint,
        FLAGS.bert_config_file,
        FLAGS.vocab_file,
        given("do_lower_case"),
        FLAGS.strip_accents,
    )
    # What an encoder lacks is found out later, by its name.
    if not FLAGS.do_train and found.head not in (None, "encoder", *heads):
        raise InputError(
            f"expected a model for this task. Received: {checkpoint}, whose "
            f"head is {found.head}, not {' or '.join(heads)}; name another, "
            "or give --do_train"
        )
    if not FLAGS.do_train:
        # The model in the folder goes before the one that it came from.
        known = output_folder.known(folder)
        recorded = known or _recorded_beside(checkpoint)
        labels = tuple(recorded.get("labels", found.labels or ()))
        found = dataclasses.replace(found, labels=labels or None)
        if given("bilstm_head") is None:
            has_one = known.get("bilstm_head", found.bilstm_head)
            FLAGS.set_default("bilstm_head", bool(has_one))
    if FLAGS.do_export and not FLAGS.do_train:
        take_recorded(
            (folder, output_folder.known(folder)),
            (checkpoint, found.trained_with),
        )
    start.require_length(FLAGS.max_seq_length, found.config)
    return dataclasses.replace(found, init_checkpoint=FLAGS.init_checkpoint)


def _recorded_beside(checkpoint: str | None) -> dict[str, Any]:
    """Returns what the folder of a training checkpoint records of its model."""
    from bert_tf.fine_tuning import output_folder

    folder, name = os.path.split(checkpoint or "")
    if not re.fullmatch(r"model\.ckpt-\d+", name):
        return {}
    return output_folder.known(folder or os.curdir)


def take_recorded(*records: tuple[str | None, Mapping[str, Any]]) -> None:
    """Lets the flags of `TRAINED_WITH` be as they were when a model was made.

    Those that the command line has stay as they are.

    Args:
      *records: The path of a model, and what is recorded of it; of two that
        know a flag, the first counts.

    Raises:
      InputError: Something is recorded that the flag cannot be.
    """
    names = [n for n in TRAINED_WITH if n in FLAGS and not FLAGS[n].present]
    for path, known in records:
        taken = [name for name in names if known.get(name) is not None]
        for name in taken:
            _set(name, known[name], path)
        if taken:
            logging.info("As %s was trained: %s", path, _words(taken))
        names = [name for name in names if name not in taken]
    if names:
        logging.warning(
            "By default, since it is not recorded with what the model was "
            "trained: %s",
            _words(names),
        )


def _set(name: str, value: Any, path: str | None) -> None:
    try:
        FLAGS.set_default(name, value)
    except flags.IllegalFlagValueError as error:
        raise InputError(
            f"expected a record that --{name} can be of how {path} was "
            f"trained. Received: {value!r}; give the flag"
        ) from error


def _words(names: Iterable[str]) -> str:
    """Flags as on a command line."""
    return " ".join(f"--{n}={json.dumps(FLAGS[n].value)}" for n in names)


def trained_with() -> dict[str, Any]:
    """What a release records of its training: `TRAINED_WITH`, as flags say."""
    return {name: FLAGS[name].value for name in TRAINED_WITH if name in FLAGS}


def export(
    estimator: "Estimator",
    name: str,
    serve: Callable[["keras.Model"], "Served"],
) -> None:
    """Writes what --do_export asks for, if it does.

    Args:
      estimator: The model that is kept.
      name: The model's name on the server.
      serve: From a model to how it answers.
    """
    from bert_tf.fine_tuning import exports, output_folder

    if FLAGS.do_export:
        known = output_folder.known(FLAGS.output_dir)
        exports.export_kept(
            estimator,
            serve,
            bert_flags.export_dir(),
            name=name,
            metrics=exports.scores_of(FLAGS.output_dir, estimator),
            source=known.get("init_checkpoint") or FLAGS.init_checkpoint,
        )


def _settings(development_set: str | None) -> dict[str, Any]:
    """How the model is trained and chosen.

    Seeds of several trainings are left out: each has a folder named by its
    seed, so that other seeds are other trainings.
    """
    names = [*_SETTINGS, *(() if FLAGS.search else _SEARCHED)]
    if not _are_several():
        names.append("random_seed")
    chosen = {}
    if selects():
        names.extend(_SCORED_WITH)
        chosen["development_set"] = development_set
    return chosen | {n: FLAGS[n].value for n in names if n in FLAGS}


def _are_several() -> bool:
    """Whether there are several trainings."""
    return FLAGS.num_seeds > 1 or FLAGS.search is not None


def claim_output_dir(
    strategy: Any,
    facts: Mapping[str, Any],
    inputs: Iterable[str],
    development_set: str | None = None,
) -> None:
    """Takes --output_dir for this run, or refuses; see `output_folder`.

    One process does it, while the others wait.

    Args:
      strategy: The devices.
      facts: What is learned, and from what.
      inputs: Files of data that the run reads.
      development_set: The checksum of the examples that choose the model, if
        any do.

    Raises:
      InputError: See there; or the model that is to be used would be replaced;
        or the training is done, with another seed; or another worker has
        other facts or other files.
    """
    from bert_tf.training.workers import by_chief, require_same_settings

    inputs = [*inputs]
    require_same_settings(strategy, facts, {"the data": inputs})
    by_chief(
        strategy,
        lambda: _claim(facts, inputs, development_set),
        "take --output_dir",
    )


def _claim(
    facts: Mapping[str, Any],
    inputs: Iterable[str],
    development_set: str | None,
) -> None:
    from bert_tf.fine_tuning import output_folder
    from bert_tf.serving.export import check_place

    folder, checkpoint = FLAGS.output_dir, FLAGS.init_checkpoint
    inputs = [
        *inputs,
        *filter(None, (FLAGS.bert_config_file, FLAGS.vocab_file)),
    ]
    facts = {**facts, "bilstm_head": FLAGS.bilstm_head}
    if FLAGS.do_train:
        # To evaluate or predict while another process trains is all right.
        bert_flags.hold(output_folder.locked(folder))
    if FLAGS.overwrite_output_dir and not FLAGS.do_train:
        raise InputError(
            "expected --do_train with --overwrite_output_dir, which replaces "
            f"the model in {folder}. Received: --nodo_train"
        )
    if FLAGS.overwrite_output_dir:
        if FLAGS.do_export:
            # Or the run that lies there would be moved for nothing.
            check_place(bert_flags.export_dir())
        output_folder.put_aside(folder, [*inputs, *filter(None, [checkpoint])])
    settings = _settings(development_set) if FLAGS.do_train else {}
    _require_seed(folder, settings)
    output_folder.verify(
        folder,
        facts,
        settings,
        inputs,
        checkpoint if FLAGS.do_train else None,
        is_several=_are_several(),
    )
    files.makedirs(folder)
    if FLAGS.do_export:
        check_place(bert_flags.export_dir())
    if FLAGS.do_train:
        output_folder.claim(folder, facts, settings)


def _require_seed(folder: str, settings: Mapping[str, Any]) -> None:
    """Raises InputError if a finished training had another seed.

    Nothing would be trained, and its results would pass for the new seed's.
    """
    from bert_tf.fine_tuning import output_folder, runs

    seed = settings.get("random_seed")
    known = output_folder.known(folder).get("random_seed", seed)
    release = os.path.join(folder, runs.RELEASE, f"{runs.WEIGHTS}.index")
    if seed != known and seed is not None and files.exists(release):
        raise InputError(
            f"--random_seed={seed} has no effect: {folder} holds a finished "
            f"training with --random_seed={known}. Name another folder, give "
            "--overwrite_output_dir to replace that training, or --num_seeds "
            "to train with several seeds."
        )
