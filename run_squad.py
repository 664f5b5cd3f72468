"""Fine-tunes BERT to answer questions from a text: SQuAD 1.1, 2.0, KorQuAD.

    python run_squad.py \\
        --train_file=squad/train-v1.1.json \\
        --predict_file=squad/dev-v1.1.json \\
        --init_checkpoint=uncased_L-12_H-768_A-12/bert_model.ckpt \\
        --output_dir=/tmp/squad_output \\
        --do_train --do_predict --do_eval \\
        --train_batch_size=12 --learning_rate=3e-5 --num_train_epochs=2 \\
        --max_seq_length=384 --doc_stride=128

The configuration, the vocabulary and the casing are the checkpoint's own, or
those that --bert_config_file, --vocab_file and --do_lower_case name. For SQuAD
2.0, whose questions may have no answer, add --version_2_with_negative; for
KorQuAD, --scorer=korquad.

--do_predict writes `predictions.json`, `nbest_predictions.json` and, for 2.0,
`null_odds.json`; --do_eval scores --predict_file by the official definition and
writes `eval_results.txt` and `.json`. `release/` holds the fine-tuned model,
which --init_checkpoint takes; --do_export writes a SavedModel for TensorFlow
Serving into `export/`. The same command given again goes on where it was
stopped. Source: `run_squad.py` of google-research/bert; sections 4.2 and 4.3 of
the paper.
"""

import dataclasses
import functools
import os
from collections.abc import Iterable, Sequence
from typing import Any

from absl import flags

import bert_tf.quiet_tensorflow  # noqa: F401
from bert_tf import flags as bert_flags
from bert_tf.config import BertConfig
from bert_tf.data import bucketing, cache
from bert_tf.data.bucketing import Features, Padding
from bert_tf.data.questions import Question
from bert_tf.data.window_records import (
    content,
    count_windows,
    write_windows,
)
from bert_tf.data.windows import SpanEncoding
from bert_tf.errors import InputError
from bert_tf.fine_tuning import command_line, output_folder, places, runs
from bert_tf.fine_tuning.inputs import evaluation_data, training_data
from bert_tf.fine_tuning.start import Start
from bert_tf.serving.spans import ServedSpanLabeler
from bert_tf.tasks import answering
from bert_tf.tasks.answering import Answered, AnswerRules
from bert_tf.tasks.question_answering import SpanTask
from bert_tf.tasks.squad import read_questions
from bert_tf.training.distribution import is_chief
from bert_tf.training.estimator import Estimator
from bert_tf.training.workers import chief_first

FLAGS = flags.FLAGS

flags.DEFINE_string("train_file", None, "SQuAD's JSON to train on.")
flags.DEFINE_string("predict_file", None, "SQuAD's JSON to answer.")
flags.DEFINE_integer(
    "doc_stride",
    128,
    "Pieces from the start of a window to the start of the next.",
    lower_bound=1,
)
flags.DEFINE_integer(
    "max_query_length",
    64,
    "Most pieces of a question; longer ones are cut.",
    lower_bound=1,
)
flags.DEFINE_integer(
    "n_best_size",
    20,
    "Starts and ends of a window that are looked at, and answers in "
    "nbest_predictions.json.",
    lower_bound=1,
)
flags.DEFINE_integer(
    "max_answer_length", 30, "Most pieces of an answer.", lower_bound=1
)
flags.DEFINE_bool(
    "version_2_with_negative",
    False,
    "Whether questions may have no answer, as those of SQuAD 2.0.",
)
flags.DEFINE_float(
    "null_score_diff_threshold",
    0.0,
    "2.0: there is no answer if its score is higher than that of the best "
    "span by more than this. Take eval_best_f1_thresh; or -1e6, which answers "
    "no question, if a warning says that this is best.",
)
flags.DEFINE_enum(
    "scorer",
    "squad",
    ["squad", "korquad"],
    "Whose official scores --do_eval gives: SQuAD's, of words, or KorQuAD's, "
    "of characters.",
)
flags.DEFINE_bool(
    "strict",
    False,
    "Whether a question that cannot be trained on is an error; else it is left "
    "out and counted.",
)
flags.DEFINE_bool(
    "verbose_logging",
    False,
    "Has no effect: the original's warned of answers that it could not find "
    "in their text, and here they are never searched for.",
)
bert_flags.define_training_flags()
command_line.define_flags(max_seq_length=384)
bert_flags.define_device_flags()


def main() -> None:
    """Reads the flags, fine-tunes, answers and scores."""
    splits = command_line.splits()
    start = places.find_start("span")
    _check_flags(splits)
    encoding = _encoding(start)
    rules = _rules()
    # What is at fault shows before anything is written.
    train = _read_to_train() if "train" in splits else []
    asked = _read_to_ask("dev" in splits) if {*splits} - {"train"} else []
    task = _task(start.config, encoding)
    strategy = bert_flags.connect()
    config = command_line.training_config(start.config)
    schedule = command_line.schedule(
        answering.metric_names(rules.with_negative)
    )
    padding = command_line.padding(strategy)
    plan = {}
    if FLAGS.do_train:
        plan = schedule.plan(config, _num_windows(train, encoding), strategy)
    _claim_output_dir(strategy, start, train, asked)
    answers_of = functools.partial(_answers, asked, encoding, rules, padding)
    if FLAGS.do_train:
        features = chief_first(
            strategy,
            functools.partial(_training_features, train, encoding),
            "make the records",
        )
        estimator = runs.FineTuning(
            task,
            strategy,
            start,
            FLAGS.output_dir,
            plan,
            schedule,
            training_data=functools.partial(training_data, features, padding),
            evaluate=lambda estimator: _score(answers_of(estimator), estimator),
            metric="eval_f1",
            tokens_per_example=float(features.lengths.mean()),
        ).train()
        runs.release(
            estimator,
            FLAGS.output_dir,
            start,
            head=task.head,
            **places.trained_with(),
        )
    else:
        estimator = runs.open_model(
            task, strategy, start, FLAGS.output_dir, config
        )
    if FLAGS.do_predict:
        answers = answers_of(estimator, FLAGS.predict_batch_size)
        _write(answers, estimator)
    elif FLAGS.do_eval:
        _write_scores(answers_of(estimator), estimator)
    serve = functools.partial(
        ServedSpanLabeler, encoding=encoding, **dataclasses.asdict(rules)
    )
    places.export(estimator, "squad", serve)


def _check_flags(splits: Sequence[str]) -> None:
    for split, names in {
        "train_file": {"train"},
        "predict_file": {"dev", "test"},
    }.items():
        if names & set(splits) and not FLAGS[split].value:
            raise InputError(
                f"expected --{split}, a file of SQuAD's JSON. Received: none"
            )
    if FLAGS.scorer == "korquad" and FLAGS.version_2_with_negative:
        raise InputError(
            "expected --scorer=korquad without --version_2_with_negative: all "
            "questions of KorQuAD 1.0 have an answer. Received: both"
        )


def _encoding(start: Start) -> SpanEncoding:
    return SpanEncoding(
        vocab=start.vocab,
        do_lower_case=start.do_lower_case,
        strip_accents=start.strip_accents,
        max_seq_length=FLAGS.max_seq_length,
        doc_stride=FLAGS.doc_stride,
        max_query_length=FLAGS.max_query_length,
    )


def _rules() -> AnswerRules:
    return AnswerRules(
        n_best_size=FLAGS.n_best_size,
        max_answer_length=FLAGS.max_answer_length,
        with_negative=FLAGS.version_2_with_negative,
        null_score_diff_threshold=FLAGS.null_score_diff_threshold,
    )


def _read_to_train() -> list[Question]:
    return read_questions(
        FLAGS.train_file,
        with_negative=FLAGS.version_2_with_negative,
        needs_answers=True,
        strict=FLAGS.strict,
    ).questions


def _read_to_ask(with_scores: bool) -> list[Question]:
    """What is to be answered; with the right answers where they are of use."""
    with_negative = FLAGS.version_2_with_negative
    questions = read_questions(
        FLAGS.predict_file,
        with_negative=with_negative,
        needs_answers=False,
        reads_answers=with_scores,
    ).questions
    if with_scores:
        answering.require_answers(questions, with_negative)
    return questions


def _num_windows(train: Sequence[Question], encoding: SpanEncoding) -> int:
    """How many examples there are to train on."""
    count = count_windows(train, encoding)
    if not count:
        raise InputError(
            f"expected questions to train on in --train_file={FLAGS.train_file}"
            ". Received: none whose context and answer have a token"
        )
    return count


def _task(config: BertConfig, encoding: SpanEncoding) -> SpanTask:
    return SpanTask(
        config,
        encoding.schema,
        n_best_size=FLAGS.n_best_size,
        frozen_layers=command_line.frozen_layers(config),
        gradient_checkpointing=FLAGS.gradient_checkpointing,
        bilstm_head=FLAGS.bilstm_head,
    )


def _claim_output_dir(
    strategy: Any,
    start: Start,
    train: Sequence[Question],
    asked: Sequence[Question],
) -> None:
    facts = output_folder.facts("squad", "span", (), start)
    if train:
        facts["training_set"] = cache.checksum(map(content, train))
    if train or FLAGS.do_export:
        # To answer here, any model may be asked in either way.
        facts["version_2_with_negative"] = FLAGS.version_2_with_negative
    inputs = filter(None, (FLAGS.train_file, FLAGS.predict_file))
    places.claim_output_dir(
        strategy, facts, inputs, cache.checksum(map(content, asked))
    )


def _training_features(
    train: Sequence[Question], encoding: SpanEncoding
) -> Features:
    """The windows of the training set, as records and in memory."""
    path = os.path.join(FLAGS.output_dir, "train.tf_record")
    write_windows(path, train, encoding, sources=[FLAGS.train_file])
    return bucketing.load(path, encoding.schema, len(encoding.vocab))


def _answers(
    asked: Sequence[Question],
    encoding: SpanEncoding,
    rules: AnswerRules,
    padding: Padding,
    estimator: Estimator,
    batch_size: int | None = None,
) -> Iterable[Answered]:
    """The answers of a model, one by one as they are found."""
    return answering.answer(
        asked,
        encoding,
        lambda windows: estimator.predict(
            evaluation_data(windows, padding), batch_size
        ),
        rules,
    )


def _write(answers: Iterable[Answered], estimator: Estimator) -> None:
    """Writes the answers, and their scores if they are wanted, in one pass."""
    if is_chief(estimator.strategy):
        answers = answering.written(
            answers, FLAGS.output_dir, FLAGS.version_2_with_negative
        )
    if FLAGS.do_eval:
        _write_scores(answers, estimator)
    else:
        for _ in answers:
            pass  # Each is written as it comes.


def _write_scores(answers: Iterable[Answered], estimator: Estimator) -> None:
    metrics = _score(answers, estimator)
    runs.write_metrics(estimator, FLAGS.output_dir, metrics)


def _score(
    answers: Iterable[Answered], estimator: Estimator
) -> dict[str, float]:
    scores = answering.score(
        answers, FLAGS.version_2_with_negative, FLAGS.scorer == "korquad"
    )
    return {**scores, "global_step": estimator.step}


if __name__ == "__main__":
    bert_flags.run(main, required=["output_dir"])
