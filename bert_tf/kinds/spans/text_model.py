"""`QuestionAnswerer`: answers to questions as slices of a text."""

import operator
from collections.abc import Mapping
from typing import Any, ClassVar

import keras

from bert_tf.config import positive_integer
from bert_tf.data.batching import Features
from bert_tf.errors import InputError, require_booleans, wrong_value
from bert_tf.kinds.spans.squad_files import Answer, Question, SpanEncoding
from bert_tf.kinds.spans.task import MASKED, AnswerRules, SpanTask, masked
from bert_tf.modeling.heads import BertSpanLabeler
from bert_tf.text_models.batches import targets_of
from bert_tf.text_models.inputs import (
    as_columns,
    labels_of,
    plain,
    require_present,
    text_of,
)
from bert_tf.text_models.text_model import TextModel

_OUTPUTS = ("start_logits", "end_logits")


@keras.saving.register_keras_serializable("bert_tf")
class QuestionAnswerer(TextModel):
    """Finds the answer to a question in a text of any length.

    Example:

        model = bert_tf.QuestionAnswerer.from_pretrained("squad_model/")
        model.predict(("Who wrote it?", "Ada wrote it in 1843."))
        # For example {'answer': 'Ada', 'score': 0.9, 'start': 0, 'end': 3}

    Questions with their texts are a list of pairs (question, context), or a
    tuple or dict of the two columns. Answers are strings, located by their
    first occurrence in the text; pairs (text, start); or SQuAD's dicts of
    `text` and `answer_start`. "" or an empty dict means no answer.

    `predict` returns a list of dicts, or one dict for one pair: `answer`, its
    probability `score` among the best answers, and its characters [`start`,
    `end`) in the text. For no answer, `answer` is "" and both are -1.
    `evaluate` and `fit(validation_data=...)` return the official scores, such
    as `exact_match` and `f1`, in percent.

    Args:
      model: A `BertSpanLabeler`.
      tokenizer: A `FullTokenizer` or a `BertTokenizer`.
      max_seq_length: The length of a window: question and part of the text.
      doc_stride: The number of tokens from the start of a window to the next.
      max_query_length: The length to which questions are truncated.
      with_negative: Whether questions may have no answer, as in SQuAD 2.0.
      max_answer_length: The largest number of tokens of an answer.
    """

    model_class = BertSpanLabeler
    task_class = SpanTask
    is_pair = True
    _recorded: ClassVar[Mapping[str, str]] = {
        **TextModel._recorded,
        "doc_stride": "doc_stride",
        "max_query_length": "max_query_length",
        "with_negative": "version_2_with_negative",
    }
    _default_length = 384

    def __init__(
        self,
        model: BertSpanLabeler,
        tokenizer: Any,
        max_seq_length: int = 384,
        doc_stride: int = 128,
        max_query_length: int = 64,
        with_negative: bool = False,
        max_answer_length: int = 30,
        name: str = "question_answerer",
    ):
        super().__init__(model, tokenizer, max_seq_length, name=name)
        for option, value in (
            ("doc_stride", doc_stride),
            ("max_query_length", max_query_length),
            ("max_answer_length", max_answer_length),
        ):
            positive_integer(option, value)
        require_booleans(with_negative=with_negative)
        self.doc_stride = doc_stride
        self.max_query_length = max_query_length
        self.rules = AnswerRules(
            max_answer_length=max_answer_length, with_negative=with_negative
        )
        # Checks that there is room for the text.
        self._encoding()

    @property
    def with_negative(self) -> bool:
        """Whether questions may have no answer."""
        return self.rules.with_negative

    @property
    def max_answer_length(self) -> int:
        """The largest number of tokens of an answer."""
        return self.rules.max_answer_length

    def examples(self, x: Any, y: Any) -> list[Question]:
        """Returns questions, with their answers unless `y` is None."""
        questions = _questions(x, y)
        for question in questions:
            if question.is_impossible and not self.with_negative:
                raise InputError(
                    f"{question.where} has no answer. If questions may have "
                    "none, pass with_negative=True to from_pretrained."
                )
        return questions

    def _features(self, x: Any, y: Any) -> Features:
        return self._encoding().features(self.examples(x, y))

    def make_task(self, **options):
        encoding = self._encoding().for_answers()
        return SpanTask(
            self.model.config, encoding, rules=self.rules, **options
        )

    def _targets(self, batch):
        length = batch["input_ids"].shape[1]
        losses = self.loss
        if not isinstance(losses, Mapping):
            losses = dict.fromkeys(_OUTPUTS, losses)
        places = batch["start_positions"], batch["end_positions"]
        return {
            name: targets_of(losses[name], labels, length)
            for name, labels in zip(_OUTPUTS, places, strict=True)
        }

    def _outputs_of_task(self, y_pred):
        return y_pred

    def call(self, inputs, training=False):
        """Maps features to start and end logits, each [B, S]."""
        outputs = self.model(inputs, training=training)
        return {
            name: masked(outputs[name], inputs["input_mask"], MASKED)
            for name in _OUTPUTS
        }

    def _encoding(self) -> SpanEncoding:
        return self.make_encoding(
            SpanEncoding,
            doc_stride=self.doc_stride,
            max_query_length=self.max_query_length,
        )

    def _served(self):
        from bert_tf.kinds.spans.graph import ServedSpanLabeler

        return ServedSpanLabeler(self.model, self._encoding(), self.rules)


def _questions(x: Any, y: Any) -> list[Question]:
    """Returns questions; each text must contain the answers to its question."""
    columns = as_columns(x, ("question", "context"))
    if not columns[0]:
        raise InputError("There are no questions.")
    if len(columns) != 2:
        raise InputError("Each question needs a text: pass pairs of strings.")
    rows = labels_of(y, len(columns[0]))
    if y is not None:
        require_present(rows, "question", "answer")
    return [
        _question(number, *row)
        for number, row in enumerate(zip(*columns, rows, strict=True))
    ]


def _question(number: int, text: str, context: str, answer: Any) -> Question:
    where = f"question {number}"
    answers = _answers(answer, context, number)
    for right in answers:
        there = context[right.start : right.start + len(right.text)]
        if right.text not in context:
            problem = f"the text does not contain {right.text!r}"
        elif right.start < 0 or there != right.text:
            place = f"at character {right.start} the text has {there!r}"
            problem = f"{place}, not {right.text!r}"
        else:
            continue
        raise InputError(f"{where}: {problem}.")
    return Question(
        str(number),
        text,
        context,
        answers,
        is_impossible=answer is not None and not answers,
        where=where,
    )


def _answers(answer: Any, context: str, number: int) -> tuple[Answer, ...]:
    """Returns the answers in a value of any form that `fit` takes."""
    try:
        if isinstance(answer, Mapping) and answer:
            texts, starts = answer["text"], answer["answer_start"]
            if isinstance(texts, (str, bytes)):
                texts, starts = [texts], [starts]
            rows = list(zip(plain(texts), plain(starts), strict=True))
        elif isinstance(answer, (tuple, list)):
            text, start = answer
            rows = [(text, start)]
        else:
            text = text_of(answer or "", number)
            rows = [(text, context.find(text))] if text else []
        return tuple(
            Answer(text_of(text, number), operator.index(start))
            for text, start in rows
        )
    except (KeyError, TypeError, ValueError):
        raise wrong_value(
            f"The answer to question {number}",
            "a string, a pair (text, start), or a dict of text and "
            "answer_start",
            answer,
        ) from None
