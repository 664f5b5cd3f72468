"""Converts an export for another runtime: the job of convert_saved_model.py.

Its options and files are explained in options/convert_saved_model.py.
"""

import functools
import os
from collections.abc import Iterator, Mapping

from absl import logging

import bert_tf.quiet_tensorflow  # noqa: F401
from bert_tf import files
from bert_tf.contrib import held_out, runtimes
from bert_tf.contrib.exported import Exported, open_export
from bert_tf.contrib.options.convert_saved_model import ConvertSavedModelConfig
from bert_tf.contrib.runtimes import (
    ComparisonRow,
    Difference,
    Measured,
    runtime_readme,
)
from bert_tf.errors import InputError, in_file
from bert_tf.serving.readme import README
from bert_tf.tasks import custom, datasets
from bert_tf.tasks.answers import require_answers
from bert_tf.tasks.conll import TaggingEncoding, read_conll
from bert_tf.tasks.datasets import DataSet
from bert_tf.tasks.questions import SpanEncoding, read_questions
from bert_tf.tokenization.vocabulary_file import load_vocab

# The problem of a classifier by the kind in the model card.
PROBLEMS = {
    "classifier": "single_label",
    "multi-label classifier": "multi_label",
    "regression": "regression",
    "multiple choice": "multiple_choice",
}
SAVED_MODEL = "SavedModel"


def run(config: ConvertSavedModelConfig) -> str:
    """Converts an export, compares the models and writes a folder.

    Returns:
      The table of sizes, differences and scores, in Markdown.
    """
    config.check()
    exported = open_export(config.export_dir)
    runtimes.require_convertible(exported)
    score = _score(config, exported) if config.eval_file else None
    with files.atomic_directory(config.output_dir) as folder:
        table = _convert(config, exported, score, folder)
    print(table)
    logging.info("Converted %s to %s", exported.path, config.output_dir)
    return table


def _convert(
    config: ConvertSavedModelConfig,
    exported: Exported,
    score: held_out.Score | None,
    folder: str,
) -> str:
    """Writes all files; returns the table."""
    batches = runtimes.random_features(exported)
    measure = functools.partial(runtimes.measure, batches=batches, score=score)
    load = runtimes.RUNTIMES[config.format].load
    logging.info("Running %s", exported.path)
    expected = measure(exported.answer_tokens)
    scores = functools.partial(_scores, exported, expected)
    rows = [ComparisonRow(SAVED_MODEL, exported.size, None, scores(expected))]
    for name, content in _models(config, exported):
        logging.info("Running %s, %.1f MB", name, len(content) / 1e6)
        measured = measure(load(content))
        off = _acceptable_difference(config, name, expected, measured)
        rows.append(ComparisonRow(name, len(content), off, scores(measured)))
        _write(folder, name, content)
    for name, path in exported.assets.items():
        with files.open_read(path) as file:
            _write(folder, name, file.read())
    table = runtimes.table(rows)
    names = [row.name for row in rows[1:]]
    text = runtime_readme(exported, config.format, names, table)
    _write(folder, README, text.encode())
    return table


def _models(
    config: ConvertSavedModelConfig, exported: Exported
) -> Iterator[tuple[str, bytes]]:
    """Yields names and bytes of the models, the float32 one first."""
    runtime = runtimes.RUNTIMES[config.format]
    content = runtime.convert(exported)
    yield f"model{runtime.extension}", content
    if config.int8:
        name = f"model.int8{runtime.extension}"
        yield name, runtime.quantize(exported, content)


def _scores(
    exported: Exported, expected: Measured, measured: Measured
) -> Mapping[str, float]:
    """Returns a model's scores; for embeddings, cosine similarities."""
    if exported.card["kind"] == "encoder":
        return runtimes.cosines(expected, measured)
    return measured.scores


def _acceptable_difference(
    config: ConvertSavedModelConfig,
    name: str,
    expected: Measured,
    measured: Measured,
) -> Difference:
    """Returns how much a model differs from the export, if acceptable.

    A float32 model differs by rounding only. An int8 model has finite outputs.
    """
    off = runtimes.difference(expected, measured)
    is_quantized = ".int8." in name
    if off.is_rounding or (is_quantized and off.largest < float("inf")):
        return off
    raise InputError(
        f"{config.output_dir} was not written: {name} differs from "
        f"{config.export_dir} by {off.relative:.1e} in {off.output}, and "
        f"{off.changed:.1%} of its answers differ; the tolerances are "
        f"{runtimes.TOLERANCE:g} and {runtimes.MOST_CHANGED:.1%}."
    )


def _write(folder: str, name: str, content: bytes) -> None:
    with files.atomic_writer(os.path.join(folder, name)) as file:
        file.write(content)


def _score(
    config: ConvertSavedModelConfig, exported: Exported
) -> held_out.Score:
    """Reads --eval_file; returns the function that scores a model."""
    kind = exported.card["kind"]
    if kind in PROBLEMS:
        return _score_classes(config, exported, PROBLEMS[kind])
    if kind == "tagger":
        encoding = TaggingEncoding(
            **_encoding(exported), labels=tuple(exported.card["labels"])
        )
        return held_out.score_tags(
            read_conll(config.eval_file).sentences, encoding
        )
    if kind == "question answering":
        return _score_answers(config, exported)
    raise InputError(
        "`eval_file` needs an export with a task; "
        f"{exported.path} is an {kind}."
    )


def _score_classes(
    config: ConvertSavedModelConfig, exported: Exported, problem: str
) -> held_out.Score:
    if exported.card["encoding"].get("doc_stride") is not None:
        raise in_file(
            exported.path,
            "`eval_file` does not support classifiers with `doc_stride`. Leave "
            "out `eval_file`.",
        )
    data_set = _data_set(config, exported, problem)
    examples = held_out.read_as(data_set, config.eval_file)
    texts = held_out.texts_of(examples, list(exported.inputs))
    return held_out.score_classes(data_set, examples, exported.features(texts))


def _data_set(
    config: ConvertSavedModelConfig, exported: Exported, problem: str
) -> DataSet:
    """Returns the data set of --task_name with the labels of the export."""
    labels = tuple(exported.card["labels"])
    if config.task_name.lower() == custom.NAME:
        first, *more = exported.inputs
        return custom.data_set(
            "",
            dev_file=config.eval_file,
            text_a_column=config.text_a_column or first,
            text_b_column=config.text_b_column if more else None,
            label_column=config.label_column,
            problem=problem,
            labels=labels or None,
        )
    data_set = datasets.find(config.task_name, language=config.xnli_language)
    count = len(labels)
    if problem == "multiple_choice":
        count = exported.inputs["choices"].shape[1]
    if (data_set.problem, len(data_set.labels)) != (problem, count):
        raise InputError(
            f"`task_name={data_set.name}` is {data_set.problem} with "
            f"{len(data_set.labels)} labels, but the export is {problem} with "
            f"{count}. Pass the task that the model was trained on."
        )
    return data_set.with_labels(
        labels, allow_mapping=config.allow_label_mapping
    )


def _score_answers(
    config: ConvertSavedModelConfig, exported: Exported
) -> held_out.Score:
    # Only models that may answer "no answer" have this output.
    answer = exported.model.signatures["serving_default"].structured_outputs
    with_negative = "null_odds" in answer
    questions = read_questions(
        config.eval_file, with_negative=with_negative, needs_answers=False
    )
    require_answers(questions, with_negative)
    encoding = SpanEncoding(**_encoding(exported))
    return held_out.score_answers(questions, encoding, with_negative)


def _encoding(exported: Exported) -> dict:
    """Returns the arguments of `TextEncoding` and its subclasses."""
    vocab = tuple(load_vocab(exported.assets["vocab.txt"]))
    return {"vocab": vocab, **exported.card["encoding"]}
