"""Small models and texts of the tests of text models. Not a test."""

import dataclasses

import keras
from keras import ops

import bert_tf
from tests.checkpoints.small_models import CONFIG as TWO_LAYERS
from tests.checkpoints.small_models import VOCAB

CONFIG = dataclasses.replace(TWO_LAYERS, num_hidden_layers=1)
TOKENIZER = bert_tf.FullTokenizer(list(VOCAB))
TEXTS = ["a b c", "d", "e f g h i", "a a", "b", "i h", "c"]
NAMES = ("bad", "good", "mixed")


def larger(model, factor=20):
    """Returns a built model with larger weights, whose answers differ."""
    model.build()
    for variable in model.trainable_variables:
        variable.assign(ops.convert_to_tensor(variable) * factor)
    return model


def classifier(num_labels=2, **options):
    keras.utils.set_random_seed(3)
    model = larger(bert_tf.BertClassifier(CONFIG, num_labels=num_labels))
    if options.get("problem") != "regression":
        options.setdefault("labels", NAMES[:num_labels])
    options.setdefault("max_seq_length", 13)
    return bert_tf.TextClassifier(model, TOKENIZER, **options)


def embedder(**options):
    keras.utils.set_random_seed(4)
    model = bert_tf.BertModel(CONFIG)
    return bert_tf.TextEmbedder(
        model, TOKENIZER, **{"max_seq_length": 13, **options}
    )


def tagger(labels=("O", "B-X", "I-X")):
    keras.utils.set_random_seed(5)
    model = bert_tf.BertTokenClassifier(CONFIG, num_labels=len(labels))
    return bert_tf.TokenTagger(model, TOKENIZER, labels, 13)


def answerer(**options):
    keras.utils.set_random_seed(6)
    model = bert_tf.BertSpanLabeler(CONFIG)
    return bert_tf.QuestionAnswerer(
        *(model, TOKENIZER, 19),
        **{"doc_stride": 5, "max_query_length": 7, **options},
    )


def filler():
    model = bert_tf.BertPretrainer(CONFIG)
    return bert_tf.MaskedWordPredictor(model, TOKENIZER, 13)


class Sequence(keras.utils.PyDataset):
    """Batches of two rows of columns."""

    def __init__(self, *columns, has_end=True):
        super().__init__()
        self.columns = columns
        self.has_end = has_end
        self.num_epochs = 0

    @property
    def num_batches(self):
        return -(-len(self.columns[-1]) // 2) if self.has_end else None

    def __getitem__(self, index):
        first = index * 2 % len(self.columns[-1])

        def rows(column):
            if isinstance(column, tuple):
                return (*map(rows, column),)
            return column[first : first + 2]

        x, *others = columns = rows(self.columns)
        return x if isinstance(x, list) and not others else columns

    def on_epoch_end(self):
        self.num_epochs += 1
