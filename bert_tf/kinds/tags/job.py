"""Fine-tunes BERT to find named entities: the job of run_ner.py.

Its options and files are explained in options.py.
"""

import os
from collections.abc import Callable, Mapping

import numpy as np
from absl import logging

from bert_tf.jobs import settings
from bert_tf.jobs.fine_tuning import Split, Steps, fine_tune
from bert_tf.jobs.start import Start, resolve
from bert_tf.jobs.trainings import TrainingResult
from bert_tf.kinds.tags import conll_files as conll
from bert_tf.kinds.tags.conll_files import ConllFile, TaggingEncoding
from bert_tf.kinds.tags.graph import ServedTagger
from bert_tf.kinds.tags.options import NerConfig
from bert_tf.kinds.tags.task import TaggingTask


def run(
    config: NerConfig, make_task: Callable[..., TaggingTask] = TaggingTask
) -> TrainingResult:
    """Fine-tunes, evaluates, predicts and exports a tagger.

    `make_task` takes the arguments of `TaggingTask`.
    """
    config.check()
    splits = settings.splits(config)
    config, start = resolve(config, "token")
    conll_files = {split: _read(config, split) for split in splits}
    encoding = _encoding(config, start, conll_files.get("train"))
    for file in conll_files.values():
        conll.label_numbers(file.sentences, encoding.labels)
    rate = start.classifier_dropout
    task = make_task(
        start.config,
        encoding,
        **settings.model_options(config, start.config),
        **({} if rate is None else {"dropout": rate}),
    )
    return fine_tune(
        config,
        start,
        task,
        [Split(name, f.sentences, [f.path]) for name, f in conll_files.items()],
        name="ner",
        steps=_Steps(task, conll_files),
        serve=lambda model: ServedTagger(model, encoding),
        facts={"problem": task.kind},
    )


class _Steps(Steps):
    """Writes the predicted tags of the sentences of each split."""

    def __init__(self, task: TaggingTask, conll_files: Mapping[str, ConllFile]):
        super().__init__(task)
        self._conll_files = conll_files

    def write(
        self, split: Split, predictions: Mapping[str, np.ndarray], folder: str
    ) -> None:
        path = os.path.join(folder, f"{split.name}_predictions.txt")
        tags = self.task.tags(predictions, split.examples)
        conll.write_conll(path, self._conll_files[split.name], tags)


def _read(config: NerConfig, split: str) -> ConllFile:
    """Reads the file of a split; a test file need not have tags."""
    return conll.read_conll(
        config.find_file(split),
        word_column=config.word_column,
        tag_column=config.tag_column,
        needs_tags=split != "test",
    )


def _encoding(
    config: NerConfig, start: Start, train: ConllFile | None
) -> TaggingEncoding:
    labels = conll.choose_labels(
        config.labels, start.labels, train.sentences if train else None
    )
    if start.labels and not config.do_train and {*labels} != {*start.labels}:
        logging.warning(
            "Mapping the model's labels %s to %s, in this order",
            ", ".join(start.labels),
            ", ".join(labels),
        )
    return start.encoding(TaggingEncoding, config.max_seq_length, labels=labels)
