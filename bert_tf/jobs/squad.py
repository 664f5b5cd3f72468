"""Fine-tunes BERT to answer questions: SQuAD 1.1, SQuAD 2.0, KorQuAD.

    python run_squad.py \\
        --train_file=squad/train-v1.1.json \\
        --predict_file=squad/dev-v1.1.json \\
        --init_checkpoint=uncased_L-12_H-768_A-12/bert_model.ckpt \\
        --output_dir=/tmp/squad_output \\
        --do_train --do_predict --do_eval \\
        --train_batch_size=12 --learning_rate=3e-5 --num_train_epochs=2 \\
        --max_seq_length=384 --doc_stride=128

The configuration, vocabulary and casing are read from the checkpoint; use
--bert_config_file, --vocab_file and --do_lower_case if it does not contain
them. Add --version_2_with_negative for SQuAD 2.0, whose questions may have no
answer, and --scorer=korquad for KorQuAD.

The job writes to --output_dir:

- `predictions.json`, `nbest_predictions.json` and, for 2.0, `null_odds.json`,
  with --do_predict.
- `eval_results.txt` and `.json`, with --do_eval: the official scores of
  --predict_file.
- `release/`, the fine-tuned model, which --init_checkpoint accepts.
- `export/`, with --do_export: a SavedModel for TensorFlow Serving.

Rerun the command to resume. Source: `run_squad.py` of google-research/bert;
sections 4.2 and 4.3 of the paper.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence

import numpy as np

import bert_tf.quiet_tensorflow  # noqa: F401
from bert_tf import cli
from bert_tf.data import buckets, cache
from bert_tf.data.batching import Features
from bert_tf.errors import InputError, in_file
from bert_tf.jobs import fine_tuning, output_folder, settings
from bert_tf.jobs.fine_tuning import FineTuning, TrainingResult
from bert_tf.jobs.settings import DistillationOptions
from bert_tf.jobs.start import Start, resolve
from bert_tf.jobs.teacher import find_teacher
from bert_tf.options import option
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
    content,
    count_windows,
    read_questions,
    write_windows,
)
from bert_tf.training.distribution import is_chief
from bert_tf.training.estimator import Estimator
from bert_tf.training.workers import chief_first


@dataclasses.dataclass(frozen=True, kw_only=True)
class SquadConfig(DistillationOptions):
    """Options of `run_squad.py`."""

    train_file: str | None = option(
        "JSON file in SQuAD's format to train on.",
        default=None,
        per_worker=True,
    )
    predict_file: str | None = option(
        "JSON file in SQuAD's format with the questions to answer.",
        default=None,
        per_worker=True,
    )
    max_seq_length: int = option(
        "Largest number of tokens of a window, [CLS] and [SEP] included.",
        fallback=384,
        at_least=3,
        at_most=settings.MOST_TOKENS,
    )
    doc_stride: int = option(
        "Number of tokens from the start of a window to the start of the next.",
        fallback=128,
        at_least=1,
    )
    max_query_length: int = option(
        "Largest number of tokens of a question; longer ones are truncated.",
        fallback=64,
        at_least=1,
    )
    n_best_size: int = option(
        "Number of start and end positions to consider in each window, and of "
        "answers in nbest_predictions.json.",
        default=20,
        at_least=1,
        at_most=10**4,
    )
    max_answer_length: int = option(
        "Largest number of tokens of an answer.", default=30, at_least=1
    )
    version_2_with_negative: bool = option(
        "Whether questions may have no answer, as in SQuAD 2.0.",
        fallback=False,
    )
    null_score_diff_threshold: float = option(
        "2.0: a question has no answer if the score of no answer exceeds the "
        "score of the best span by more than this. Use eval_best_f1_thresh; or "
        "-1e6, which answers no question, if a warning recommends it.",
        default=0.0,
    )
    scorer: str = option(
        "Official scores that --do_eval computes: SQuAD's, on words, or "
        "KorQuAD's, on characters.",
        default="squad",
        choices=("squad", "korquad"),
    )
    strict: bool = option(
        "Whether a question that cannot be trained on is an error. Default: "
        "such questions are skipped and counted.",
        default=False,
    )
    verbose_logging: bool = option(
        "Ignored, for old command lines: the original warned of answers that "
        "it did not find in their text, which are not searched for here.",
        default=False,
    )


@settings.precision_restored()
def run(config: SquadConfig) -> TrainingResult:
    """Fine-tunes, answers questions, scores the answers and exports."""
    splits = settings.splits(config)
    config, start = resolve(config, "span")
    _check_options(config, splits)
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
    with _claimed_output_dir(tuning, train, asked):
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


def _check_options(config: SquadConfig, splits: Sequence[str]) -> None:
    flags = {"train": "train_file", "dev": "predict_file"}
    flags["test"] = "predict_file"
    for split in splits:
        if not getattr(config, flags[split]):
            raise InputError(
                f"--{flags[split]} is required: a JSON file of SQuAD."
            )
    if config.scorer == "korquad" and config.version_2_with_negative:
        raise InputError(
            "--scorer=korquad and --version_2_with_negative exclude each "
            "other: all questions of KorQuAD 1.0 have an answer."
        )


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
    count = count_windows(train, encoding)
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
        encoding.schema,
        n_best_size=encoding.max_seq_length,
        frozen_layers=settings.frozen_layers(config, start.config),
        gradient_checkpointing=config.gradient_checkpointing,
        bilstm_head=config.bilstm_head,
    )


def _claimed_output_dir(
    tuning: FineTuning, train: Sequence[Question], asked: Sequence[Question]
) -> contextlib.AbstractContextManager[None]:
    config = tuning.config
    facts = tuning.facts("squad", "span", ())
    if train:
        facts["training_set"] = cache.checksum(map(content, train))
    if train or config.do_export:
        # Any model can answer questions in either way.
        facts["version_2_with_negative"] = config.version_2_with_negative
    inputs = filter(None, (config.train_file, config.predict_file))
    return output_folder.claimed(
        config,
        tuning.strategy,
        facts,
        inputs,
        cache.checksum(map(content, asked)),
    )


def _load(
    config: SquadConfig, train: Sequence[Question], encoding: SpanEncoding
) -> Features:
    """Writes the windows of the training set as records, and loads them."""
    path = fine_tuning.record_file(config, "train")
    write_windows(path, train, encoding, sources=[config.train_file])
    return buckets.load(path, encoding.schema, len(encoding.vocab))


def _score(
    config: SquadConfig, answers: Iterable[Answered], estimator: Estimator
) -> dict[str, float]:
    scores = official_scores(
        answers, config.version_2_with_negative, config.scorer == "korquad"
    )
    return {**scores, "global_step": estimator.step}


if __name__ == "__main__":
    cli.main(run)
