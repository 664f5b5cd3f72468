"""Fine-tunes BERT to answer questions: the job of run_squad.py.

Its options and files are explained in options.py.
"""

import functools
from collections.abc import Callable

from bert_tf.jobs import settings
from bert_tf.jobs.fine_tuning import Predict, Split, Steps, fine_tune
from bert_tf.jobs.start import resolve
from bert_tf.jobs.trainings import TrainingResult
from bert_tf.kinds.spans import task as span_task
from bert_tf.kinds.spans.graph import ServedSpanLabeler
from bert_tf.kinds.spans.options import SquadConfig
from bert_tf.kinds.spans.squad_files import SpanEncoding, read_questions
from bert_tf.kinds.spans.task import AnswerRules, SpanTask


def run(
    config: SquadConfig, make_task: Callable[..., SpanTask] = SpanTask
) -> TrainingResult:
    """Fine-tunes, answers questions, scores the answers and exports.

    `make_task` takes the arguments of `SpanTask`.
    """
    config.check()
    config, start = resolve(config, "span")
    config.require_scorer()
    encoding = start.encoding(
        SpanEncoding,
        config.max_seq_length,
        doc_stride=config.doc_stride,
        max_query_length=config.max_query_length,
    )
    rules = AnswerRules(
        n_best_size=config.n_best_size,
        max_answer_length=config.max_answer_length,
        with_negative=config.version_2_with_negative,
        null_score_diff_threshold=config.null_score_diff_threshold,
    )
    task = make_task(
        start.config,
        encoding,
        **settings.model_options(config, start.config),
    )
    facts = {}
    # Any model can predict with and without "no answer".
    if config.do_train or config.do_export:
        facts = {"version_2_with_negative": config.version_2_with_negative}
    return fine_tune(
        config,
        start,
        task,
        _read(config),
        name="squad",
        steps=_Steps(task, config, rules),
        serve=functools.partial(
            ServedSpanLabeler, encoding=encoding, rules=rules
        ),
        metrics=span_task.metric_names(rules.with_negative),
        facts=facts,
        inputs=filter(None, (config.train_file, config.predict_file)),
    )


class _Steps(Steps):
    """Predicts, scores and writes the answers to questions, part by part."""

    records = ("train",)

    def __init__(self, task: SpanTask, config: SquadConfig, rules: AnswerRules):
        super().__init__(task)
        self._config = config
        self._rules = rules

    def evaluate(
        self, split: Split, predict: Predict, folder: str | None
    ) -> dict[str, float]:
        config, with_negative = self._config, self._rules.with_negative
        answers = list(
            span_task.answer_questions(
                split.examples, self.task.encoding, predict, self._rules
            )
        )
        if folder is not None and split.is_predicted:
            span_task.write_answers(answers, folder, with_negative)
        if split.name != "dev":
            return {}
        is_korquad = config.scorer == "korquad"
        return span_task.official_scores(answers, with_negative, is_korquad)


def _read(config: SquadConfig) -> list[Split]:
    """Returns the questions to train on, and the questions to answer."""
    names = settings.splits(config)
    with_negative = config.version_2_with_negative
    read = functools.partial(read_questions, with_negative=with_negative)
    splits = []
    if "train" in names:
        train = read(config.train_file, needs_answers=True)
        splits.append(Split("train", train, [config.train_file]))
    if {*names} - {"train"}:
        questions = read(config.predict_file, needs_answers=False)
    if "dev" in names:
        span_task.require_answers(questions, with_negative)
        # One pass scores and writes the answers.
        both = config.do_eval and config.do_predict
        splits.append(Split("dev", questions, is_predicted=both))
    if config.do_predict and not config.do_eval:
        splits.append(Split("test", questions))
    return splits
