"""The output folder: whose it is, and what in it is ours to remove.

`fine_tuning.json` holds what a run learns and from what. Whoever comes again
with another task, model or training set would otherwise go on training the old
one, or be told that there is nothing left to train.
"""

import contextlib
import fcntl
import json
import os
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from absl import logging

from bert_tf import files
from bert_tf.config import BertConfig
from bert_tf.errors import InputError
from bert_tf.interop.checkpoint import read_metadata
from bert_tf.jobs import settings
from bert_tf.jobs.settings import FineTuningOptions

# The output folder: whose it is, and what in it is ours to remove.


FACTS = "fine_tuning.json"
# The folder of the model that is kept, and its checkpoint.
RELEASE = "release"
WEIGHTS = "bert_model.ckpt"
OVERWRITTEN = "overwritten"

# The folders and the files of a run, by their names, and what is in the former.
# The exports are not among them: a server may have them open.
_FOLDERS = re.compile(r"eval|best|release|trials|glue_submission")
_FILES = re.compile(
    r"model\.ckpt-.*|checkpoint|graph\.pbtxt|events\.out\.tfevents\..*"
    r"|eval_results\.(txt|json)|evaluations\.jsonl|fine_tuning\.json"
    r"|trials?\.(json|tsv)"
    r"|(manifest\.)?(train|eval|predict)[a-z_]*\.tf_record(\.json)?"
    r"|test_results[a-z_]*\.tsv|predictions[a-z_]*\.tsv"
    r"|(nbest_)?predictions\.json|null_odds\.json"
    r"|(dev|test)_predictions\.txt"
)
_INNER_FILES = re.compile(
    r"(next\.)?(bert_model\.ckpt.*|best\.json)"
    r"|bert_config\.json|vocab\.txt|bert_tf\.json"
    r"|(CoLA|SST-2|MRPC|STS-B|QQP|MNLI-mm?|QNLI|RTE|WNLI|AX)\.tsv"
)
_TRAINED = re.compile(r"model\.ckpt-\d+\.index|trials|release")

# Options that shape a model, besides its task and its data. A job need not have
# all of them.
_SETTINGS = (
    *("init_checkpoint", "max_seq_length", "mixed_precision"),
    *("warmup_proportion", "optimizer", "adam_bias_correction"),
    *("weight_decay_rate", "max_grad_norm"),
    *("num_frozen_layers", "layer_rate_decay"),
    *("class_weights", "label_smoothing", "head_dropout"),
    *("doc_stride", "max_query_length"),
    *("eval_steps", "save_best", "early_stopping_patience"),
)
# Options that differ between the trainings of a search.
_SEARCHED = ("train_batch_size", "learning_rate", "num_train_epochs")
# Options that scores depend on, besides the development set: with other values,
# another checkpoint or training may be the best.
_SCORED_WITH = (
    *("scorer", "n_best_size", "max_answer_length"),
    "null_score_diff_threshold",
)


@contextlib.contextmanager
def claimed(
    config: FineTuningOptions,
    strategy: Any,
    facts: Mapping[str, Any],
    inputs: Iterable[str],
    development_set: str | None = None,
) -> Iterator[None]:
    """Reserves --output_dir for a run, until the `with` block ends.

    The chief does it, while the other workers wait.

    Args:
      config: The options of the run.
      strategy: The devices.
      facts: What is learned, and from what: `Start.facts` and more.
      inputs: The data files that the run reads.
      development_set: The checksum of the examples that select the model, if
        any do.

    Raises:
      InputError: The folder cannot be used, the run would overwrite a model
        that it reads, a training with another seed is finished there, or
        another worker has other facts or files.
    """
    from bert_tf.training.workers import by_chief, require_same_settings

    inputs = [*inputs]
    require_same_settings(strategy, facts, {"the data": inputs})
    with contextlib.ExitStack() as stack:
        by_chief(
            strategy,
            lambda: _claim(config, facts, inputs, development_set, stack),
            "take --output_dir",
        )
        yield


def _claim(
    config: FineTuningOptions,
    facts: Mapping[str, Any],
    inputs: Iterable[str],
    development_set: str | None,
    stack: contextlib.ExitStack,
) -> None:
    from bert_tf.serving.export import check_place

    folder, checkpoint = config.output_dir, config.init_checkpoint
    inputs = [
        *inputs,
        *filter(None, (config.bert_config_file, config.vocab_file)),
    ]
    facts = {**facts, "bilstm_head": config.bilstm_head}
    if config.do_train:
        # Evaluating or predicting while another process trains is fine.
        stack.enter_context(locked(folder))
    if config.overwrite_output_dir and not config.do_train:
        raise InputError(
            "expected --do_train with --overwrite_output_dir, which replaces "
            f"the model in {folder}. Received: --nodo_train"
        )
    if config.overwrite_output_dir:
        if config.do_export:
            # If it is unusable, the old run should stay in its place.
            check_place(settings.export_dir(config))
        put_aside(folder, [*inputs, *filter(None, [checkpoint])])
    chosen = _settings(config, development_set) if config.do_train else {}
    _require_seed(folder, chosen)
    verify(
        folder,
        facts,
        chosen,
        inputs,
        checkpoint if config.do_train else None,
        is_several=_are_several(config),
    )
    files.makedirs(folder)
    if config.do_export:
        check_place(settings.export_dir(config))
    if config.do_train:
        claim(folder, facts, chosen)


def _settings(
    config: FineTuningOptions, development_set: str | None
) -> dict[str, Any]:
    """Returns how the model is trained and selected.

    With several trainings the seeds are left out: each has a folder named after
    its seed, so that other seeds are other trainings.
    """
    names = [*_SETTINGS, *(() if config.search else _SEARCHED)]
    if not _are_several(config):
        names.append("random_seed")
    chosen = {}
    if settings.selects(config):
        names.extend(_SCORED_WITH)
        chosen["development_set"] = development_set
    return chosen | {
        name: _as_json(getattr(config, name))
        for name in names
        if hasattr(config, name)
    }


def _as_json(value: Any) -> Any:
    """Returns an option as a JSON file gives it back."""
    return list(value) if isinstance(value, tuple) else value


def _are_several(config: FineTuningOptions) -> bool:
    """Returns whether there are several trainings."""
    return config.num_seeds > 1 or config.search is not None


def _require_seed(folder: str, chosen: Mapping[str, Any]) -> None:
    """Raises InputError if a finished training had another seed.

    Nothing would be trained, and its results would pass for the new seed's.
    """
    seed = chosen.get("random_seed")
    before = known(folder).get("random_seed", seed)
    release = os.path.join(folder, RELEASE, f"{WEIGHTS}.index")
    if seed != before and seed is not None and files.exists(release):
        raise InputError(
            f"--random_seed={seed} has no effect: {folder} holds a finished "
            f"training with --random_seed={before}. Name another folder, give "
            "--overwrite_output_dir to replace that training, or --num_seeds "
            "to train with several seeds."
        )


def no_model(folder: str) -> InputError:
    """Returns the error for a run without a model to use."""
    return InputError(
        f"expected a fine-tuned model in --output_dir={folder}, or "
        "--init_checkpoint, or --do_train. Received: none of them"
    )


@contextlib.contextmanager
def locked(folder: str) -> Iterator[None]:
    """Keeps other trainings on this machine out of an output folder.

    A missing folder is created, and removed if nothing was written to it.

    Args:
      folder: The output folder. A remote one is not locked.

    Raises:
      InputError: Another process trains there, or the folder cannot be created.
    """
    if files.is_remote(folder):
        yield
        return
    is_new = not files.exists(folder)
    if is_new:
        files.makedirs(folder)
    try:
        with only_one(folder):
            yield
    finally:
        if is_new and not files.listdir(folder):
            files.remove_tree(folder)


@contextlib.contextmanager
def only_one(path: str) -> Iterator[None]:
    """Locks a local file or folder, which has to exist, for one process.

    The kernel releases the lock when the process ends, even by SIGKILL, so that
    no lock is ever left over. File systems without locks are not locked.

    Raises:
      InputError: Another process has locked `path`.
    """
    with contextlib.ExitStack() as stack:
        try:
            descriptor = os.open(path, os.O_RDONLY)
            stack.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InputError(
                f"{_lock_holder(descriptor)} is writing to {path}. Wait until "
                "it ends, or give another --output_dir."
            ) from error
        except OSError:
            pass  # There are no locks here.
        yield


def _lock_holder(descriptor: int) -> str:
    """Names the process that has locked a file, as far as Linux lists it."""
    stat = os.fstat(descriptor)
    device = f"{os.major(stat.st_dev):02x}:{os.minor(stat.st_dev):02x}"
    with contextlib.suppress(InputError):
        # 1: FLOCK  ADVISORY  WRITE 4711 08:01:393217 0 EOF
        pattern = rf"FLOCK .* ([1-9]\d*) {device}:{stat.st_ino} "
        if found := re.search(pattern, files.read_text("/proc/locks")):
            return f"Process {found[1]}"
    return "Another process"


def verify(
    folder: str,
    facts: Mapping[str, Any],
    settings: Mapping[str, Any],
    inputs: Iterable[str] = (),
    init_checkpoint: str | None = None,
    is_several: bool = False,
) -> None:
    """Sees whether a run may write to a folder; changes nothing.

    Args:
      folder: The output folder.
      facts: What `facts` gave, and more: what is known of both runs counts.
      settings: How the model is trained; empty where it is not.
      inputs: Files that the run reads.
      init_checkpoint: Where training starts from; None without training.
      is_several: Whether it is several trainings, which have to be alike.

    Raises:
      InputError: The folder is a file, holds somebody's checkpoint that is to
        be trained, or an input under a name that the run writes; or the run
        that lies there is another one.
    """
    if files.exists(folder) and not files.is_directory(folder):
        raise InputError(
            "expected --output_dir to be a folder, or new. Received: the file "
            f"{folder}"
        )
    for path in inputs:
        if _folder_of(path) == _real(folder) and _FILES.fullmatch(
            os.path.basename(path)
        ):
            raise InputError(
                "expected --output_dir without an input that the run would "
                f"write over. Received: {path}; name another folder"
            )
    record = _read(folder)
    if not record and init_checkpoint:
        _require_apart(folder, init_checkpoint)
    if is_trained(folder) and record:
        _require_same(record.get("facts", {}), facts, folder)
        _tell_changes(record.get("settings", {}), settings, folder, is_several)


def _require_apart(folder: str, init_checkpoint: str) -> None:
    """A training leaves files that say what the newest checkpoint is."""
    if _real(folder) in (_real(init_checkpoint), _folder_of(init_checkpoint)):
        raise InputError(
            "expected --output_dir apart from --init_checkpoint. Received: "
            f"{folder} for {init_checkpoint}; name a new folder"
        )


def claim(
    folder: str,
    facts: Mapping[str, Any],
    settings: Mapping[str, Any],
    name: str = FACTS,
) -> None:
    """Takes a folder that `verify` has nothing against, for a training.

    It is there. What is known of a training that has begun stays as it is.

    Args:
      folder: The output folder.
      facts: As for `verify`.
      settings: Likewise.
      name: Of the file that notes them.
    """
    if not is_trained(folder) or not _read(folder, name):
        record = {"facts": dict(facts), "settings": dict(settings)}
        _write(folder, record, name)


def put_aside(folder: str, inputs: Iterable[str] = ()) -> None:
    """Makes room for another run; the one that lies there moves to a subfolder.

    It is removed when the new one is done (`settle`): until then nothing is
    lost.

    Args:
      folder: The output folder.
      inputs: Paths that the new run reads.

    Raises:
      InputError: There are files, and no run of this program; or the new run
        needs what would be moved.
    """
    if not files.exists(folder) or not files.listdir(folder):
        return
    if not _read(folder):
        raise InputError(
            "expected --overwrite_output_dir with the folder of a run, where "
            f"{FACTS} lies. Received: {folder}, without it; remove it "
            "yourself, or name another folder"
        )
    run = sorted(filter(_is_ours, files.listdir(folder)))
    for name in run:
        _require_unneeded(os.path.join(folder, name), inputs)
    aside = os.path.join(folder, OVERWRITTEN)
    if files.exists(aside):
        # Of a run before that one, which was never finished.
        for name in run:
            _remove_ours(os.path.join(folder, name))
        return
    files.makedirs(aside)
    for name in run:
        files.rename(os.path.join(folder, name), os.path.join(aside, name))
    logging.info("The run in %s is in %s until this one is done", folder, aside)


def settle(folder: str) -> None:
    """The training is done: the run that it replaces goes."""
    aside = os.path.join(folder, OVERWRITTEN)
    if files.exists(aside):
        _remove_ours(aside)


def note_kept(folder: str, training: str) -> None:
    """Notes in which folder the training lies whose model is kept."""
    _write(folder, {**_read(folder), "kept": os.path.relpath(training, folder)})


def kept(folder: str) -> str:
    """The folder of that training: the output folder, or one of a trial."""
    inside = _read(folder).get("kept", os.curdir)
    return folder if inside == os.curdir else os.path.join(folder, inside)


def is_trained(folder: str) -> bool:
    """Whether there is anything that another run could be mixed up with."""
    if not files.is_directory(folder):
        return False
    return any(map(_TRAINED.fullmatch, files.listdir(folder)))


def known(folder: str, name: str = FACTS) -> dict[str, Any]:
    """The facts and settings of the model in a folder, if there is one.

    Args:
      folder: The output folder.
      name: Of the file that `claim` has noted them in.
    """
    record = _read(folder, name) if is_trained(folder) else {}
    return {**record.get("facts", {}), **record.get("settings", {})}


def _read(folder: str, name: str = FACTS) -> dict[str, Any]:
    path = os.path.join(folder, name)
    return files.read_json(path) if files.exists(path) else {}


def _write(folder: str, record: Mapping[str, Any], name: str = FACTS) -> None:
    text = json.dumps(record, indent=2, sort_keys=True, ensure_ascii=False)
    files.write_text(os.path.join(folder, name), text + "\n")


def _require_same(
    before: Mapping[str, Any], now: Mapping[str, Any], folder: str
) -> None:
    for name, value in now.items():
        if name in before and before[name] != value:
            raise InputError(
                f"expected --output_dir of {_shown(name, value)}, or a new "
                f"one. Received: {folder}, where a run of "
                f"{_shown(name, before[name])} lies; name another folder, "
                "or give --overwrite_output_dir to replace that run"
            )


def _shown(name: str, value: Any) -> str:
    """A fact in a few words: configurations and hashes are long."""
    if name == "task":
        return f"task {value}"
    if name in ("vocabulary", "training_set"):
        return f"{name.replace('_', ' ')} {str(value)[:8]}"
    if name == "config" and isinstance(value, Mapping):
        layers, width = (
            value.get(key) for key in ("num_hidden_layers", "hidden_size")
        )
        unusual = value.get("attention_direction")
        way = f", {unusual}" if unusual else ""
        return f"a model of {layers} layers, hidden size {width}{way}"
    return f"{name} {json.dumps(value, ensure_ascii=False)}"


def _tell_changes(
    before: Mapping[str, Any],
    now: Mapping[str, Any],
    folder: str,
    is_several: bool,
) -> None:
    changed = ", ".join(
        "the development set was another"
        if name == "development_set"
        else f"--{name} was {before[name]}, is {value}"
        for name, value in now.items()
        if name in before and before[name] != value
    )
    if changed and is_several:
        raise InputError(
            f"expected the settings of the trainings in {folder}. Received "
            f"others: {changed}; name another folder, or give "
            "--overwrite_output_dir to replace them"
        )
    if changed:
        logging.warning(
            "%s holds a run with other settings (%s): steps that are done stay "
            "as they are; --overwrite_output_dir begins anew",
            folder,
            changed,
        )


def _is_ours(name: str) -> bool:
    return bool(_FOLDERS.fullmatch(name) or _FILES.fullmatch(name))


def _remove_ours(path: str) -> None:
    """Removes what runs write, and the folders that are empty then."""
    if not files.is_directory(path):
        name = os.path.basename(path)
        if _FILES.fullmatch(name) or _INNER_FILES.fullmatch(name):
            files.remove(path)
        return
    for name in files.listdir(path):
        _remove_ours(os.path.join(path, name))
    if not files.listdir(path):
        files.remove_tree(path)


def _real(path: str) -> str:
    return path.rstrip("/") if files.is_remote(path) else os.path.realpath(path)


def _folder_of(path: str) -> str:
    return os.path.dirname(_real(path))


def _require_unneeded(doomed: str, inputs: Iterable[str]) -> None:
    """Raises InputError if one of the inputs goes with `doomed`.

    An input may be a folder that holds it, or a prefix: checkpoints have files
    with longer names.
    """
    target = _real(doomed)
    for given in inputs:
        path = _real(given)
        if (
            path == os.path.dirname(target)
            or target.startswith(f"{path}.")
            or f"{path}/".startswith(f"{target}/")
        ):
            raise InputError(
                "expected --overwrite_output_dir with inputs outside of "
                f"--output_dir. Received: {given}, which it would remove"
            )


# The output folder of a pre-training: which kind of model is trained there.


PRETRAINING = "pretraining.json"


def kind_of_config(config: BertConfig) -> dict[str, Any]:
    """The part of a kind that a configuration tells."""
    names = ("attention_direction", "num_attention_heads", "hidden_act")
    return {name: getattr(config, name) for name in names}


def verify_kind(
    folder: str,
    release: str,
    kind: Mapping[str, Any],
    random_seed: int | None = None,
) -> None:
    """Compares a model with the one that was trained in a folder, if any.

    Another seed is logged: the steps that are done had the old one.

    Args:
      folder: The output folder.
      release: The folder of its release. It is asked where nothing is noted, as
        in earlier versions.
      kind: Values by flags, objective and next_sentence, and by entries of the
        configuration, as attention_direction. One that does not matter to the
        run is left out.
      random_seed: The seed of the training; None without training.

    Raises:
      InputError: They differ.
    """
    before = known(folder, PRETRAINING) or _kind_of(release)
    for name, value in kind.items():
        trained = before.get(name, value)
        if trained != value:
            raise InputError(
                f"expected {name}={_word(trained)}, as the model in {folder} "
                "was trained, or another --output_dir. Received: "
                f"{_word(value)}"
            )
    seed = before.get("random_seed", random_seed)
    if random_seed not in (None, seed):
        logging.warning(
            "%s was trained with --random_seed=%d, not %d: steps that are done "
            "stay as they are, and the order of the examples changes",
            folder,
            seed,
            random_seed,
        )


def claim_kind(folder: str, kind: Mapping[str, Any], random_seed: int) -> None:
    """Notes the kind and seed of a training that `verify_kind` accepts.

    What is known of one that has begun stays as it is.
    """
    claim(folder, kind, {"random_seed": random_seed}, PRETRAINING)


def released_kind(kind: Mapping[str, Any]) -> dict[str, Any]:
    """What a release says of the kind, in the terms of `Pretrained`."""
    facts: dict[str, Any] = {}
    if not kind["next_sentence"]:
        # Its other head is there, and random.
        facts["head"] = "masked_lm"
    if kind["objective"] != "masked_lm":
        facts["objective"] = kind["objective"]
    return facts


def require_writable(folder: str) -> None:
    """Sees whether files can be written to a folder, or it is new.

    Nothing is made that stays.

    Raises:
      InputError: It is a file, or cannot be written to.
    """
    if not files.exists(folder):
        return
    if not files.is_directory(folder):
        raise InputError(
            "expected --output_dir to be a directory, or new. Received: the "
            f"file {folder}"
        )
    # A name of its own: other workers try the same, perhaps in this place.
    probe = os.path.join(folder, f".writable-{secrets.token_hex(4)}")
    with files.atomic_writer(probe):
        pass
    files.remove(probe)


def _kind_of(release: str) -> dict[str, Any]:
    """Returns the kind of a release, for `verify_kind`; empty if unknown."""
    found = read_metadata(release)
    if "config" not in found:
        return {}
    return {
        **kind_of_config(found["config"]),
        "objective": found.get("objective", "masked_lm"),
        "next_sentence": found.get("head") != "masked_lm",
    }


def _word(value: Any) -> str:
    """A value as on a command line."""
    return value if isinstance(value, str) else json.dumps(value)
