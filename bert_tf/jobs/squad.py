"""Fine-tunes BERT to answer questions: the job of run_squad.py.

Its options and files are explained in options/squad.py.
"""

import contextlib
import functools
from collections.abc import Callable, Iterable, Sequence

import numpy as np

import bert_tf.quiet_tensorflow  # noqa: F401
from bert_tf import command
from bert_tf.data import buckets, cache
from bert_tf.data.batching import Features
from bert_tf.errors import in_file
from bert_tf.jobs import fine_tuning, output_folder, settings
from bert_tf.jobs.fine_tuning import FineTuning, TrainingResult
from bert_tf.jobs.options.squad import SquadConfig
from bert_tf.jobs.start import Start, resolve
from bert_tf.jobs.teacher import find_teacher
from bert_tf.serving.spans import ServedSpanLabeler
from bert_tf.tasks.answers import (
    Answered,
    AnswerRules,
    answer_questions,
    metric_names,
    official_scores,
    require_answers,
    write_answers,
)
from bert_tf.tasks.question_answering import SpanTask
from bert_tf.tasks.questions import (
    Question,
    SpanEncoding,
    read_questions,
)
from bert_tf.training.distribution import is_chief
from bert_tf.training.estimator import Estimator
from bert_tf.training.workers import chief_first


@settings.precision_restored()
def run(config: SquadConfig) -> TrainingResult:
    """Fine-tunes, answers questions, scores the answers and exports."""
    config.check()
    splits = settings.splits(config)
    config, start = resolve(config, "span")
    config.require_scorer()
    encoding = start.encoding(
        SpanEncoding,
        config.max_seq_length,
        doc_stride=config.doc_stride,
        max_query_length=config.max_query_length,
    )
    rules = _rules(config)
    # All input is checked before anything is written.
    train, asked = _read(config, splits)
    task = _task(config, start, encoding)
    tuning = fine_tuning.prepare(
        config,
        start,
        task,
        metric_names(rules.with_negative),
        _num_windows(config, train, encoding) if config.do_train else None,
        find_teacher(config, start, task),
    )
    with _claimed_output_dir(tuning, encoding, train, asked):
        features = None
        if config.do_train:
            features = chief_first(
                tuning.strategy,
                functools.partial(_load, config, train, encoding),
                "make the records",
            )

        def answers_of(
            estimator: Estimator, batch_size: int | None = None
        ) -> Iterable[Answered]:
            """Yields the answers one by one as they are found."""

            def predict(windows: Features) -> dict[str, np.ndarray]:
                data = tuning.evaluation_data(windows)
                return estimator.predict(data, batch_size)

            return answer_questions(asked, encoding, predict, rules)

        estimator = tuning.train_or_open(
            features,
            lambda estimator: _score(config, answers_of(estimator), estimator),
        )
        metrics = _answer(tuning, answers_of, estimator)
        serve = functools.partial(
            ServedSpanLabeler, encoding=encoding, rules=rules
        )
        return tuning.finish(estimator, metrics, "squad", serve)


def _answer(
    tuning: FineTuning,
    answers_of: Callable[..., Iterable[Answered]],
    estimator: Estimator,
) -> dict[str, float]:
    """Writes the answers and their scores; returns the scores, if wanted."""
    config = tuning.config
    if config.do_predict:
        answers = answers_of(estimator, config.predict_batch_size)
        if is_chief(estimator.strategy):
            answers = write_answers(
                answers, config.output_dir, config.version_2_with_negative
            )
    elif config.do_eval:
        answers = answers_of(estimator)
    else:
        return {}
    if not config.do_eval:
        for _ in answers:
            pass  # Each answer is written as it comes.
        return {}
    metrics = _score(config, answers, estimator)
    tuning.write_metrics(estimator, metrics)
    return metrics


def _rules(config: SquadConfig) -> AnswerRules:
    return AnswerRules(
        n_best_size=config.n_best_size,
        max_answer_length=config.max_answer_length,
        with_negative=config.version_2_with_negative,
        null_score_diff_threshold=config.null_score_diff_threshold,
    )


def _read(
    config: SquadConfig, splits: Sequence[str]
) -> tuple[list[Question], list[Question]]:
    """Returns the questions to train on, and the questions to answer."""
    with_negative = config.version_2_with_negative
    train, asked = [], []
    if "train" in splits:
        train = read_questions(
            config.train_file,
            with_negative=with_negative,
            needs_answers=True,
            strict=config.strict,
        )
    if {*splits} - {"train"}:
        asked = read_questions(
            config.predict_file,
            with_negative=with_negative,
            needs_answers=False,
            reads_answers="dev" in splits,
        )
    if "dev" in splits:
        require_answers(asked, with_negative)
    return train, asked


def _num_windows(
    config: SquadConfig, train: Sequence[Question], encoding: SpanEncoding
) -> int:
    """Returns the number of training examples, which are windows."""
    count = encoding.count_rows(train)
    if not count:
        raise in_file(
            config.train_file, "no question has a context and an answer."
        )
    return count


def _task(
    config: SquadConfig, start: Start, encoding: SpanEncoding
) -> SpanTask:
    return SpanTask(
        start.config,
        encoding,
        n_best_size=encoding.max_seq_length,
        frozen_layers=settings.frozen_layers(config, start.config),
        gradient_checkpointing=config.gradient_checkpointing,
        bilstm_head=config.bilstm_head,
    )


def _claimed_output_dir(
    tuning: FineTuning,
    encoding: SpanEncoding,
    train: Sequence[Question],
    asked: Sequence[Question],
) -> contextlib.AbstractContextManager[None]:
    config = tuning.config
    facts = tuning.facts("squad", "span", ())
    if train:
        facts["training_set"] = cache.checksum(map(encoding.fingerprint, train))
    if train or config.do_export:
        # Any model can answer questions in either way.
        facts["version_2_with_negative"] = config.version_2_with_negative
    inputs = filter(None, (config.train_file, config.predict_file))
    return output_folder.claimed(
        config,
        tuning.strategy,
        facts,
        inputs,
        cache.checksum(map(encoding.fingerprint, asked)),
    )


def _load(
    config: SquadConfig, train: Sequence[Question], encoding: SpanEncoding
) -> Features:
    """Writes the windows of the training set as records, and loads them."""
    path = fine_tuning.record_file(config, "train")
    encoding.write(path, train, sources=[config.train_file])
    return buckets.load(path, encoding.schema, len(encoding.vocab))


def _score(
    config: SquadConfig, answers: Iterable[Answered], estimator: Estimator
) -> dict[str, float]:
    scores = official_scores(
        answers, config.version_2_with_negative, config.scorer == "korquad"
    )
    return {**scores, "global_step": estimator.step}


if __name__ == "__main__":
    command.run_job("squad")
