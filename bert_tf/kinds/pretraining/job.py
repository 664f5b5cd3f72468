"""Pre-trains BERT: the job of run_pretraining.py.

Its options and files are explained in options.py.
"""

import contextlib
import dataclasses
import functools
import os
from collections.abc import Iterator
from typing import Any

from absl import logging

from bert_tf.base import files
from bert_tf.checkpoints.checkpoint import (
    Pretrained,
    require_sizes,
    with_metadata,
)
from bert_tf.checkpoints.pretrained import compare_configs, open_pretrained
from bert_tf.checkpoints.tf1 import CheckpointManager
from bert_tf.config import BertConfig
from bert_tf.corpus import creation
from bert_tf.data import pipeline
from bert_tf.data.records import suggest_skip_corrupt
from bert_tf.errors import InputError
from bert_tf.jobs import output_folder, settings, start
from bert_tf.jobs.output_folder import PRETRAINING, RELEASE
from bert_tf.jobs.trainings import (
    TrainingResult,
    export_kept,
    training_hooks,
    write_release,
)
from bert_tf.kinds.pretraining.data import PretrainingData, inspect_files
from bert_tf.kinds.pretraining.options import PretrainingConfig
from bert_tf.kinds.pretraining.task import PretrainingTask
from bert_tf.serving.export import require_export_dir
from bert_tf.serving.served import ServedMaskedLM
from bert_tf.tasks.encoding import TextEncoding
from bert_tf.tokenization.vocabulary_file import load_vocab, require_fit
from bert_tf.training.distribution import is_chief
from bert_tf.training.estimator import Estimator
from bert_tf.training.hooks import Hook
from bert_tf.training.results import write_results
from bert_tf.training.workers import by_chief, require_same_settings


@settings.precision_restored()
@suggest_skip_corrupt()
def run(config: PretrainingConfig) -> TrainingResult:
    """Pre-trains, evaluates, releases and exports a model."""
    config.check()
    is_new = not CheckpointManager(config.output_dir).steps()
    initial = None
    # A resumed run only needs the configuration of this checkpoint.
    if config.init_checkpoint and (is_new or not config.bert_config_file):
        initial = open_pretrained(config.init_checkpoint)
    bert_config = start.find_config(config, initial)
    if config.attention_direction is not None:
        direction = config.attention_direction
        bert_config = dataclasses.replace(
            bert_config, attention_direction=direction
        )
    if config.do_export and not config.do_train:
        # Restores the sequence length of the training.
        model = initial if is_new else None
        if model is None:
            path = os.path.join(config.output_dir, RELEASE)
            model = with_metadata(Pretrained(path, {}), path)
        config = start.with_recorded(config, (model.path, model.trained_with))
    config = config.with_fallbacks()
    _check_options(config, bert_config)
    if initial is not None and is_new:
        require_sizes(bert_config, initial.weights)
        compare_configs(bert_config, initial)
    train_files = eval_files = files.expand(config.input_file, "input_file")
    if config.eval_input_file:
        eval_files = files.expand(config.eval_input_file, "eval_input_file")
    output_folder.require_folder(config.output_dir)
    encoding = _encoding(config, train_files) if config.do_export else None
    with _connected(config, bert_config, train_files, eval_files) as strategy:
        task = PretrainingTask(
            bert_config,
            config.max_seq_length,
            config.max_predictions_per_seq,
            config.next_sentence,
            config.objective,
        )
        data = _data(config, task, train_files, eval_files)
        with pipeline.input_errors([*train_files, *eval_files]):
            return _run(config, task, strategy, data, encoding, initial)


def _run(
    config: PretrainingConfig,
    task: PretrainingTask,
    strategy: Any,
    data: PretrainingData,
    encoding: TextEncoding | None,
    initial: Pretrained | None,
) -> TrainingResult:
    """Trains, evaluates and exports, as requested."""
    if config.do_eval or config.eval_steps > 0:
        # Counts the evaluation records, so that a truncated file fails before
        # training.
        data.evaluation(batch_size=config.eval_batch_size)
    estimator = Estimator(
        task,
        strategy,
        config.training(),
        config.output_dir,
        (lambda: initial.weights) if initial else None,
    )
    if config.init_checkpoint and estimator.is_resumed:
        start.warn_of_ignored(config.init_checkpoint, config.output_dir)
    _require_weights(config, estimator)
    files.makedirs(config.output_dir)
    if encoding is not None:
        require_export_dir(settings.export_dir(config))
    release, export, metrics = None, None, {}
    if config.do_train:
        release = _train(config, estimator, data)
    if config.do_eval:
        metrics = estimator.evaluate(data.evaluation)
        if is_chief(strategy):
            path = os.path.join(config.output_dir, "eval_results.txt")
            write_results(path, {**metrics, **data.readable.results})
    if encoding is not None:
        export = export_kept(
            estimator,
            functools.partial(ServedMaskedLM, encoding=encoding),
            settings.export_dir(config),
            name="bert",
            metrics=metrics or None,
            source=config.init_checkpoint,
        )
    return TrainingResult(metrics, release, export)


def _train(
    config: PretrainingConfig, estimator: Estimator, data: PretrainingData
) -> str:
    """Trains and releases the model; returns the folder of the release."""
    examples_per_row = data.examples_per_row(config.train_batch_size)
    hooks = training_hooks(
        estimator,
        config.output_dir,
        config,
        functools.partial(estimator.evaluate, data.evaluation),
        config.eval_steps,
        examples_per_step=config.train_batch_size * examples_per_row,
        tokens_per_example=config.max_seq_length / examples_per_row,
    )
    if is_chief(estimator.strategy):
        hooks = [_RecordKind(config, estimator.task.config), *hooks]
    estimator.train(data.training, hooks)
    return _release(config, estimator, data.train_files)


@contextlib.contextmanager
def _connected(
    config: PretrainingConfig,
    bert_config: BertConfig,
    train_files: list[str],
    eval_files: list[str],
) -> Iterator[Any]:
    """Connects to the devices and, to train, locks --output_dir."""
    strategy = settings.connect(config)
    facts = {"config": bert_config.to_dict()}
    if config.vocab_file:
        facts["vocabulary"] = start.vocabulary_checksum(
            load_vocab(config.vocab_file)
        )
    require_same_settings(
        strategy,
        facts,
        {
            "`input_file`": train_files,
            "`eval_input_file`": eval_files if config.eval_input_file else [],
        },
    )
    with contextlib.ExitStack() as stack:
        if config.do_train:
            lock = output_folder.locked(config.output_dir)
            by_chief(
                strategy,
                lambda: stack.enter_context(lock),
                "lock `output_dir`",
            )
        yield strategy


def _data(
    config: PretrainingConfig,
    task: PretrainingTask,
    train_files: list[str],
    eval_files: list[str],
) -> PretrainingData:
    """Returns the records, which are checked for damage if requested."""
    if task.next_sentence:
        creation.require_next_sentence({*train_files, *eval_files})
    return PretrainingData(
        train_files,
        eval_files,
        task.schema,
        task.config.vocab_size,
        config.random_seed,
        config.max_eval_steps * config.eval_batch_size or None,
        is_packed=config.pack_sequences,
        is_causal=task.objective == "causal_lm",
        readable=inspect_files(
            train_files, eval_files, config.skip_corrupt_records
        ),
    )


def _check_options(config: PretrainingConfig, bert_config: BertConfig) -> None:
    """Checks options against the configuration and earlier files."""
    start.require_length(config.max_seq_length, bert_config)
    kind = {"facts": _kind(config, bert_config)}
    output_folder.require_same(config.output_dir, kind, name=PRETRAINING)
    if config.vocab_file:
        vocab = load_vocab(config.vocab_file)
        require_fit(vocab, bert_config.vocab_size, config.vocab_file)


def _require_weights(config: PretrainingConfig, estimator: Estimator) -> None:
    """Raises InputError if random weights would be evaluated or exported."""
    if config.do_train:
        return
    if estimator.weights_from is None:
        raise InputError(
            f"There is no checkpoint in `output_dir={config.output_dir}` to "
            "evaluate or export. Pass one as `init_checkpoint`, or pass "
            "`do_train`."
        )
    if estimator.lacking:
        raise InputError(
            f"{estimator.weights_from} lacks {estimator.lacking[0]}. To "
            "evaluate or export, pass a checkpoint with "
            f"{'both heads' if config.next_sentence else 'the masked-LM head'} "
            "of pre-training."
        )


def _release(
    config: PretrainingConfig, estimator: Estimator, train_files: list[str]
) -> str:
    """Writes a folder to fine-tune from, in the layout of Google's releases."""
    if not config.vocab_file:
        logging.warning(
            "%s has no vocab.txt: pass `vocab_file`, or copy it there",
            os.path.join(config.output_dir, RELEASE),
        )
    is_causal = config.objective == "causal_lm"
    return write_release(
        estimator,
        config.output_dir,
        config=estimator.task.config,
        vocab=config.vocab_file and tuple(load_vocab(config.vocab_file)),
        # The next-sentence head may exist, but have random weights.
        head=None if config.next_sentence else "masked_lm",
        objective=config.objective if is_causal else None,
        **creation.casing_of(train_files),
        **start.trained_with(config),
    )


def _encoding(
    config: PretrainingConfig, train_files: list[str]
) -> TextEncoding:
    """Returns the tokenization that the records were created with."""
    casing = creation.casing_of(train_files)
    if not config.vocab_file or not casing:
        missing = "casing" if config.vocab_file else "vocabulary"
        raise InputError(
            f"`do_export` needs the {missing}: pass `vocab_file`, and records "
            "with the manifest that create_pretraining_data.py writes; or "
            "export the release by fill_mask.py --do_export."
        )
    return TextEncoding(
        tuple(load_vocab(config.vocab_file)),
        max_seq_length=config.max_seq_length,
        **casing,
    )


def _kind(config: PretrainingConfig, bert_config: BertConfig) -> dict[str, Any]:
    """Returns the properties of the model that a resumed run must share."""
    kind = {"objective": config.objective}
    for name, value in vars(bert_config).items():
        if not name.endswith(("_prob", "_range")):
            kind[name] = value
    if config.do_train or (config.do_eval and config.next_sentence):
        # A model with a next-sentence head can be evaluated without it.
        kind["next_sentence"] = config.next_sentence
    return kind


class _RecordKind(Hook):
    """Records the kind of model before the first step of a new training.

    A run that fails earlier leaves the folder as it was.
    """

    def __init__(self, config: PretrainingConfig, bert_config: BertConfig):
        self._folder = config.output_dir
        self._record = {
            "facts": _kind(config, bert_config),
            "settings": {"random_seed": config.random_seed},
        }

    def begin(self, step: int) -> None:
        if not step or not output_folder.read_record(self._folder, PRETRAINING):
            output_folder.write_record(self._folder, self._record, PRETRAINING)
