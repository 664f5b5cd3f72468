"""BERT with LSTMs below its head: "+ BiLSTM" of table 5, and table 7.

The paper does not say how large the BiLSTM of table 5 is. Here each direction
has the width of BERT, like the LSTMs of table 7. Heads that score whole texts
take the last states of both directions instead of the pooler's output.

The shape letters are explained at the top of `encoder.py`; L is the size of an
LSTM.
"""

import keras
from keras import ops

from bert_tf import BertClassifier, BertSpanLabeler, BertTokenClassifier
from bert_tf.kinds.classification.task import ClassificationTask
from bert_tf.kinds.spans.task import SpanTask
from bert_tf.kinds.tags.task import TaggingTask
from bert_tf.kinds.vectors.features import CHOICES

UNUSED = r"bert/pooler/"


def make_bilstm(size: int, name: str) -> keras.layers.Bidirectional:
    """Returns a bidirectional LSTM with outputs [B, S, 2 L]."""
    lstm = keras.layers.LSTM(
        size,
        return_sequences=True,
        use_cudnn=False,  # XLA cannot compile cuDNN's kernels.
        name="lstm",
    )
    return keras.layers.Bidirectional(lstm, name=name)


def run_bilstm(bilstm, x, input_mask):
    """Returns the states of tokens, floats [B, S, 2 L]; 0 for padding."""
    mask = input_mask > 0
    # Padding is 0 already, but `where` leaves out the mask that Keras attached.
    return ops.where(mask[..., None], bilstm(x, mask=mask), 0)


class OnBilstm:
    """Puts a BiLSTM between the encoder and the head of a model."""

    def __init__(self, config, *args, **kwargs):
        super().__init__(config, *args, **kwargs)
        self.bilstm = make_bilstm(self.width, "bilstm")
        self.width *= 2
        self.freeze_pooler()

    def build_head(self, shapes):
        self.bilstm.build((None, None, self.config.hidden_size))
        super().build_head(shapes)

    def vectors(self, inputs, training, seed):
        x, encoded = super().vectors(inputs, training, seed)
        return run_bilstm(self.bilstm, x, inputs["input_mask"]), encoded

    def pooled(self, inputs, training, seed):
        x, encoded = self.vectors(inputs, training, seed)
        size = self.width // 2
        last = ops.sum(inputs["input_mask"], axis=1)[:, None, None] - 1
        forward = ops.take_along_axis(x, last, axis=1)[:, 0, :size]
        return ops.concatenate([forward, x[:, 0, size:]], axis=-1), encoded


class BilstmClassifier(OnBilstm, BertClassifier):
    """Table 5."""


class BilstmTokenClassifier(OnBilstm, BertTokenClassifier):
    """Table 5."""


class BilstmSpanLabeler(OnBilstm, BertSpanLabeler):
    """Table 5."""


class FeatureTagger(BertTokenClassifier):
    """Two BiLSTMs on the hidden states of a frozen BERT without dropout.

    Args:
      layers: The hidden states, one of `CHOICES`. Sums have learned weights,
        which start uniform.
      lstm_size: L.
    """

    def __init__(self, config, num_labels, layers, lstm_size, **kwargs):
        super().__init__(config, num_labels, **kwargs)
        self.bert.output_hidden_states = True
        self.bert.trainable = False
        self.choice = CHOICES[layers]
        self.lstms = [make_bilstm(lstm_size, f"bilstm_{n}") for n in range(2)]
        self.width = 2 * lstm_size

    def build_head(self, shapes):
        depth = range(self.config.num_hidden_layers + 1)
        count, width = len(depth[self.choice.states]), self.config.hidden_size
        if self.choice.is_sum:
            self.layer_weights = self.add_weight(
                name="layer_weights", shape=(count,), initializer="zeros"
            )
        else:
            width *= count
        for lstm in self.lstms:
            lstm.build((None, None, width))
            width = self.width
        super().build_head(shapes)

    def vectors(self, inputs, training, seed):
        encoded = self.bert(inputs, training=False)
        states = encoded["hidden_states"][self.choice.states]
        if self.choice.is_sum:
            shares = ops.softmax(self.layer_weights)
            x = sum(state * shares[n] for n, state in enumerate(states))
        else:
            x = ops.concatenate(states, axis=-1)
        for lstm in self.lstms:
            x = run_bilstm(lstm, x, inputs["input_mask"])
        return x, encoded


class BilstmClassification(ClassificationTask):
    """The task of bilstm_classifier.py."""

    kind = "bilstm classifier"
    unused_variables = UNUSED

    def make_model(self, **options):
        return BilstmClassifier(self.config, self.num_outputs, **options)


class BilstmTagging(TaggingTask):
    """The task of bilstm_ner.py."""

    kind = "bilstm tagger"

    def make_model(self, **options):
        return BilstmTokenClassifier(self.config, len(self.labels), **options)


class BilstmSpans(SpanTask):
    """The task of bilstm_squad.py."""

    kind = "bilstm spans"

    def make_model(self, **options):
        return BilstmSpanLabeler(self.config, **options)


class FeatureTagging(TaggingTask):
    """The task of feature_ner.py."""

    kind = "feature tagger"

    def make_model(self, **options):
        return FeatureTagger(self.config, len(self.labels), **options)
