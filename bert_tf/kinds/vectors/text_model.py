"""`TextEmbedder`: a vector for each text."""

import itertools
from collections.abc import Mapping
from typing import Any, ClassVar

import keras
import numpy as np
from absl import logging
from keras import ops

from bert_tf.checkpoints.checkpoint import are_texts
from bert_tf.config import positive_integer
from bert_tf.data.batching import Features
from bert_tf.errors import (
    InputError,
    did_you_mean,
    listed,
    require_booleans,
    require_choice,
    wrong_value,
)
from bert_tf.kinds.vectors.task import (
    DEFAULTS,
    POOLINGS,
    EmbeddingTask,
    cosines,
    number_texts,
    numbers_of,
    pool,
    require_negatives,
    retrieval_scores,
    unit,
)
from bert_tf.modeling.encoder import BertModel
from bert_tf.tasks import metrics
from bert_tf.tasks.encoding import Encoding
from bert_tf.tasks.examples import Example
from bert_tf.tasks.task import flatten
from bert_tf.text_models.batches import num_replicas, scope_of
from bert_tf.text_models.inputs import (
    Part,
    as_columns,
    best_texts,
    labels_of,
    plain,
    require_present,
)
from bert_tf.text_models.predict import answers, keras_scores, predict
from bert_tf.text_models.text_model import TextModel

# How many documents `search` compares at a time.
_DOCUMENTS = 10_000


@keras.saving.register_keras_serializable("bert_tf")
class TextEmbedder(TextModel):
    """Computes sentence embeddings, for search, clustering or classification.

    Example:

        model = bert_tf.TextEmbedder.from_pretrained(
            "hf://google-bert/bert-base-uncased"
        )
        vectors = model.predict(["The ferry was late.", "We had to wait."])
        print(vectors @ vectors.T)  # Cosines, [2, 2].

    `fit` takes pairs of texts. Without `y`, the texts of a pair belong
    together. The other second texts of the batch are negatives, unless the
    batch also pairs them with this first text, or they equal it. Larger batches
    are better. With `y`, numbers from -1 to 1, the cosines of pairs are fitted
    to the numbers: divide scores from 0 to 5 by 5.

    `evaluate` with `y` returns the correlations `pearson` and `spearman` of
    cosines and numbers, which may have any range. Without `y` it returns the
    loss and two scores. For each first text, its second text and the negatives
    among all texts are ranked by cosine: `accuracy` is how often the second
    text is first, and `mrr` its mean reciprocal rank.
    `fit(validation_data=...)` reports these scores and the loss.

    Sources: Henderson et al. 2017, "Efficient Natural Language Response
    Suggestion for Smart Reply", 4.4; Reimers and Gurevych 2019,
    "Sentence-BERT".

    Args:
      model: A `BertModel`.
      tokenizer: A `FullTokenizer` or a `BertTokenizer`.
      pooling: How token vectors become an embedding: the "mean" or "max" of the
        last layer over all tokens, with [CLS] and [SEP]; "cls", the last layer
        at [CLS]; or "pooled", the pooler's output. By default "mean".
      normalize: Whether vectors have length 1; by default true.
      max_seq_length: The longest sequence, in tokens with [CLS] and [SEP].
      prompts: The prefixes of texts, by the name of their use, such as
        {"query": "Find a passage about: "}; see `predict`.
      default_prompt_name: The prompt that `predict` and `evaluate` use by
        default. `fit` and exported models add no prompt.
      doc_stride: If given, longer texts become windows of `max_seq_length`
        tokens, which start this many tokens apart. The vector of a text is the
        mean of its windows' vectors, weighted by their numbers of tokens, or
        their maximum with pooling="max". `fit` truncates texts. By default
        texts are truncated.
    """

    model_class = BertModel
    task_class = EmbeddingTask
    _needs_labels = False
    _recorded: ClassVar[Mapping[str, str]] = {
        **TextModel._recorded,
        "pooling": "pooling",
        "normalize": "normalize",
        "prompts": "prompts",
        "default_prompt_name": "default_prompt_name",
        "doc_stride": "doc_stride",
    }

    def __init__(
        self,
        model: BertModel,
        tokenizer: Any,
        pooling: str = DEFAULTS["pooling"],
        normalize: bool = DEFAULTS["normalize"],
        max_seq_length: int = 128,
        prompts: Mapping[str, str] | None = None,
        default_prompt_name: str | None = None,
        doc_stride: int | None = None,
        name: str = "text_embedder",
    ):
        require_choice("pooling", pooling, POOLINGS)
        if pooling == "pooled" and model.pooler is None:
            raise InputError("The model has no pooler. Use another pooling.")
        super().__init__(model, tokenizer, max_seq_length, name=name)
        require_booleans(normalize=normalize)
        self.pooling = pooling
        self.normalize = normalize
        prompts = {} if prompts is None else prompts
        is_mapping = isinstance(prompts, Mapping)
        if not is_mapping or not are_texts([*prompts, *prompts.values()]):
            raise wrong_value("prompts", "a dict from names to texts", prompts)
        self.prompts = dict(prompts)
        self.default_prompt_name = default_prompt_name
        if doc_stride is not None:
            doc_stride = positive_integer("doc_stride", doc_stride)
        self.doc_stride = doc_stride
        # Checks the options of windows.
        self._encoding()
        self._prompt(None)
        if pooling != "pooled" and model.pooler is not None:
            # The pooler has no gradient.
            model.pooler.trainable = False
            model.unused_variables = r"bert/pooler/"

    @classmethod
    def _recorded_options(cls, pretrained):
        if pretrained.unsupported_modules:
            raise InputError(
                f"{pretrained.path}: TextEmbedder cannot compute "
                f"{listed(pretrained.unsupported_modules)}. "
                "BertModel.from_pretrained reads the encoder alone."
            )
        recorded = super()._recorded_options(pretrained)
        if pretrained.window_pooling is None:
            # The `doc_stride` of other models is for windows of questions.
            recorded.pop("doc_stride", None)
        return recorded

    def _facts(self):
        pooling = self.doc_stride and self._encoding().window_pooling
        return {**super()._facts(), "window_pooling": pooling}

    def _encoding(self) -> Encoding:
        """Returns the encoding of texts to predict."""
        return self.make_encoding(
            Encoding,
            problem="regression",
            doc_stride=self.doc_stride,
            window_pooling="max" if self.pooling == "max" else "mean",
        )

    def predict(
        self,
        x: Any,
        batch_size: int = 32,
        verbose: Any = "auto",
        steps: int | None = None,
        callbacks: Any = None,
        *,
        prompt_name: str | None = None,
    ) -> np.ndarray:
        """Returns a vector for each text, float32 [n, H].

        Args:
          x: Texts; a single string gives a vector [H].
          batch_size: Batch size for texts of `max_seq_length`; batches of
            shorter texts are larger.
          verbose: See `TextModel.predict`.
          steps: The number of batches to predict.
          callbacks: Callbacks of Keras.
          prompt_name: The name of the prompt to put before each text; by
            default `default_prompt_name`, if it is set.
        """
        vectors = predict(
            self,
            x,
            batch_size,
            verbose,
            steps,
            callbacks,
            prompt=self._prompt(prompt_name),
        )
        if self._is_single(x):
            return vectors
        size = self.model.config.hidden_size
        return np.array(vectors, np.float32).reshape(-1, size)

    def examples(
        self, x: Any, y: Any, prompt: str | None = None
    ) -> list[Example]:
        """Returns texts with a prompt, by default the default prompt."""
        prompt = self._prompt(None) if prompt is None else prompt
        [texts] = _texts(x, 1)
        return [Example(str(n), prompt + text) for n, text in enumerate(texts)]

    def similarity(self, a: Any, b: Any, batch_size: int = 32) -> np.ndarray:
        """Returns the cosine of each of n and each of m texts, float32 [n, m].

        Args:
          a: Texts, or their vectors, floats [n, H].
          b: Other texts, or their vectors, floats [m, H].
          batch_size: Batch size for texts of `max_seq_length`; batches of
            shorter texts are larger.
        """
        first, second = (self._unit_vectors(x, batch_size) for x in (a, b))
        return first @ second.T

    def search(
        self,
        queries: Any,
        documents: Any,
        top_k: int = 10,
        batch_size: int = 32,
    ) -> Any:
        """Finds the documents that are most similar to each query.

        Documents are compared in parts, so that only the vectors of one part
        are in memory. The prompt "query" is put before queries, and "document"
        before documents, if the model has them.

        Args:
          queries: Texts, or a single string.
          documents: Texts, or an iterator of texts, read a part at a time.
          top_k: The largest number of documents for a query.
          batch_size: Batch size for texts of `max_seq_length`; batches of
            shorter texts are larger.

        Returns:
          For each query a list of dicts, the best first; for a single string
          one list. A dict has `index`, the number of the document, `score`, its
          cosine, and its `text`.
        """
        positive_integer("top_k", top_k)
        texts = [queries] if self._is_single(queries) else queries
        query_vectors = self._unit_vectors(texts, batch_size, "query")
        best: list[list[dict[str, Any]]] = [[] for _ in query_vectors]
        is_iterator = hasattr(documents, "__next__")
        rows = documents if is_iterator else iter(plain(documents))
        parts = iter(lambda: [*itertools.islice(rows, _DOCUMENTS)], [])
        for number, part in enumerate(parts):
            vectors = self._unit_vectors(part, batch_size, "document")
            for row, scores in enumerate(query_vectors @ vectors.T):
                nearest = best_texts(scores, part, top_k)
                for document in nearest:
                    document["index"] += number * _DOCUMENTS
                # Sorting is stable: equal scores keep their order.
                best[row] = sorted(
                    best[row] + nearest, key=lambda x: -x["score"]
                )[:top_k]
        return best[0] if self._is_single(queries) else best

    def _unit_vectors(
        self, x: Any, batch_size: int, prompt_name: str | None = None
    ) -> np.ndarray:
        """Returns vectors of length 1 of texts, or of vectors."""
        if not (isinstance(x, np.ndarray) and x.dtype.kind == "f"):
            name = prompt_name if prompt_name in self.prompts else None
            x = self.predict(x, batch_size, verbose=0, prompt_name=name)
        size = self.model.config.hidden_size
        if x.shape[-1] != size:
            raise wrong_value(
                "The length of a vector",
                f"{size}, the size of the model's vectors",
                x.shape[-1],
            )
        return ops.convert_to_numpy(unit(np.atleast_2d(x).astype(np.float32)))

    def _prompt(self, name: str | None) -> str:
        """Returns a prompt; raises InputError for an unknown name."""
        name = self.default_prompt_name if name is None else name
        if name is None:
            return ""
        if not isinstance(name, str) or name not in self.prompts:
            names = listed(self.prompts, last="or", quote=True) or "left out"
            hint = did_you_mean(str(name), self.prompts).strip()
            raise wrong_value("The name of a prompt", names, name, hint)
        return self.prompts[name]

    def _scores(self, data, batch_size, progress, features=None):
        """Returns the scores of run_embeddings.py, with the default prompt."""
        columns = _texts(data.x, 2)
        vectors = np.stack(
            [answers(self, texts, batch_size, progress) for texts in columns],
            axis=1,
        )
        if data.y is None:
            text_ids = numbers_of(zip(*columns, strict=True))
            scores = retrieval_scores(text_ids, vectors)
            if features is None:  # Otherwise `fit` computes the loss.
                rows = self._features(data.x, None)
                scores |= keras_scores(self, rows, batch_size, verbose=0)
            return scores
        # The numbers may have any range, so a loss is meaningless.
        similarities = ops.convert_to_numpy(cosines(vectors))
        scores = _scores(data.y, len(similarities))
        return metrics.compute(("pearson", "spearman"), scores, similarities)

    def call(self, inputs, training=False):
        """Maps features, int32 [B, S], to vectors, float32 [B, H].

        Features of pairs, [B, 2, S], become [B, 2, H]. Vectors are not
        normalized, and windows not joined.
        """
        shape = ops.shape(inputs["input_ids"])
        flat = flatten(inputs)
        outputs = self.model(flat, training=training)
        vectors = pool(outputs, flat["input_mask"], self.pooling)
        return ops.reshape(vectors, (*shape[:-1], vectors.shape[-1]))

    def _features(self, x: Any, y: Any) -> Features:
        first, second = _texts(x, 2)
        if y is not None:
            y = _scores(y, len(first)).tolist()
            if abs(largest := max(y, key=abs)) > 1:
                advice = "Divide scores from 0 to 5 by 5."
                expected = "cosines, from -1 to 1"
                raise wrong_value("Scores", expected, largest, advice)
        examples = super().examples((first, second), y)
        encoding = self.make_encoding(Encoding, problem="similarity")
        return number_texts(encoding.features(examples))

    def compile(
        self,
        optimizer: Any = "auto",
        loss: Any = "auto",
        metrics: Any = "auto",
        **options: Any,
    ) -> None:
        """See `TextModel.compile`; the loss and the scores are fixed."""
        arguments = {"loss": loss, "metrics": metrics, **options}
        for name in ("loss", "metrics", "weighted_metrics"):
            if arguments.get(name) not in ("auto", None):
                raise InputError(
                    "TextEmbedder has its own loss and scores. Leave out "
                    f"{name}."
                )
        super().compile(optimizer, **arguments)

    def _training_data(self, data: Part, batch_size: int, *options: Any) -> Any:
        batches = super()._training_data(data, batch_size, *options)
        # Of a data set, only the first part is checked.
        arrays = next(iter(batches.parts())).arrays
        with scope_of(self):
            size = -(-batch_size // num_replicas())
        is_unscored = np.isnan(arrays["label_ids"])
        require_negatives(arrays["text_ids"][is_unscored], size)
        return batches

    def make_task(self, **options):
        return EmbeddingTask(
            self.model.config,
            self._encoding(),
            self.pooling,
            self.normalize,
            **options,
        )

    def _outputs_of_task(self, y_pred):
        return {"vector": y_pred}

    def _served(self):
        if self._prompt(None):
            logging.warning(
                "The export adds no prompt: put %r before each text",
                self._prompt(None),
            )
        return super()._served()


def _texts(x: Any, count: int) -> list[list[str]]:
    """Returns one column of texts, or two."""
    columns = as_columns(x, ("text_a", "text_b")[:count])
    if not columns[0]:
        raise InputError("There are no texts.")
    if len(columns) != count:
        raise InputError(
            "Expected single texts; got pairs."
            if count == 1
            else "Expected pairs of texts; got single texts. Pass a list of "
            "pairs or a tuple of two columns. The elements of a "
            "tf.data.Dataset must be ((a, b),) or ((a, b), score)."
        )
    return columns


def _scores(y: Any, count: int) -> np.ndarray:
    """Returns the numbers of pairs, floats [count]."""
    scores = labels_of(y, count)
    require_present(scores, "pair", "score")
    try:
        return np.array([*map(float, scores)])
    except (OverflowError, TypeError, ValueError):
        raise wrong_value("The scores", "numbers", scores) from None
