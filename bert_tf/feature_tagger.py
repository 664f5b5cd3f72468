"""BERT as it is, and a small network on top that alone is trained.

The feature-based approach: section 5.3 and table 7 of the paper. Hidden states
of a frozen BERT go through two bidirectional LSTMs, and those give a score to
each label at each position. The legend of shapes is at the top of
`modeling.py`; C is the number of labels, L the size of an LSTM.
"""

from typing import NamedTuple

import keras
from keras import ops

from bert_tf.config import BertConfig
from bert_tf.errors import InputError
from bert_tf.head_layers import Logits, make_bilstm
from bert_tf.heads import HEAD_SITE
from bert_tf.layers import (
    BertLayer,
    FromConfig,
    TakesFeatures,
    fold_in,
    positive_integer,
)
from bert_tf.modeling import BertModel

NUM_LSTMS = 2


class Choice(NamedTuple):
    """Which hidden states are looked at, and how they become one vector.

    Attributes:
      states: Which of them; the embeddings are the first, then come the
        blocks' outputs.
      num_layers: How many blocks a model has to have for that.
      is_weighted: Whether they are added, with weights that are learned;
        otherwise they stand side by side.
    """

    states: slice
    num_layers: int = 1
    is_weighted: bool = False


# The rows of table 7.
CHOICES = {
    "embeddings": Choice(slice(0, 1)),
    "second_to_last": Choice(slice(-2, -1), num_layers=2),
    "last": Choice(slice(-1, None)),
    "sum_last_four": Choice(slice(-4, None), num_layers=4, is_weighted=True),
    "concat_last_four": Choice(slice(-4, None), num_layers=4),
    "sum_all": Choice(slice(1, None), is_weighted=True),
}


def choose(layers: str, config: BertConfig) -> Choice:
    """The choice of a name, one of `CHOICES`.

    Raises:
      InputError: There is none of that name, or the model is too small.
    """
    if layers not in CHOICES:
        raise InputError(
            f"expected one of {', '.join(CHOICES)} as layers. Received: "
            f"{layers!r}"
        )
    choice = CHOICES[layers]
    if config.num_hidden_layers < choice.num_layers:
        raise InputError(
            f"expected a model of at least {choice.num_layers} layers for "
            f"{layers}. Received: one of {config.num_hidden_layers}; choose "
            f"among {', '.join(_possible(config))}"
        )
    return choice


def _possible(config: BertConfig) -> list[str]:
    return [
        name
        for name, choice in CHOICES.items()
        if choice.num_layers <= config.num_hidden_layers
    ]


@keras.saving.register_keras_serializable("bert_tf")
class FeatureHead(Logits, BertLayer):
    """From hidden states to a score for each label at each position.

    Args:
      config: A `BertConfig`, or the dict that its `to_dict` gave.
      num_labels: Number of labels, C.
      layers: One of `CHOICES`.
      lstm_size: Size L of each LSTM in each direction.
      dropout: Share of the values below the scores that training sets to 0.

    Raises:
      InputError: One of them makes no sense, or the model has too few layers.
    """

    def __init__(
        self,
        config: BertConfig | dict,
        num_labels: int,
        layers: str,
        lstm_size: int,
        dropout: float,
        **kwargs,
    ):
        super().__init__(config, **kwargs)
        self.num_labels = positive_integer("num_labels", num_labels)
        self.lstm_size = positive_integer("lstm_size", lstm_size)
        self.layer_choice = layers
        self.choice = choose(layers, self.config)
        self.lstms = [
            make_bilstm(self.lstm_size, f"bilstm_{n}", self.dtype_policy)
            for n in range(NUM_LSTMS)
        ]
        self.dropout = self.make_dropout(dropout)

    def build(self, hidden_states_shape=None, input_mask_shape=None):
        states = range(self.config.num_hidden_layers + 1)[self.choice.states]
        width = self.config.hidden_size
        if self.choice.is_weighted:
            self.layer_weights = self.add_weight(
                name="layer_weights", shape=(len(states),), initializer="zeros"
            )
        else:
            width *= len(states)
        for lstm in self.lstms:
            lstm.build((None, None, width))
            width = 2 * self.lstm_size
        self.dropout.build((None, None, width))
        self.add_output(self.num_labels, width=width)

    def call(self, hidden_states, input_mask, training=False, seed=None):
        """Scores every position, the padding's too.

        Args:
          hidden_states: The embeddings and every block's output, a list of
            floats [B, S, H].
          input_mask: Integers [B, S]: 0 for padding, which the LSTMs pass
            over, so that it changes nothing elsewhere.
          training: Whether dropout is on.
          seed: Integer tensor [2] or None, see `Dropout`.

        Returns:
          Logits, float32 [B, S, C].
        """
        x = self.combine(hidden_states)
        mask = ops.cast(input_mask, "bool")
        for lstm in self.lstms:
            x = lstm(x, mask=mask)  # [B, S, 2 L]
        return self.score(self.dropout(x, training=training, seed=seed))

    def combine(self, hidden_states):
        """One vector of the chosen states: [B, S, H or a multiple of it]."""
        chosen = hidden_states[self.choice.states]
        if not self.choice.is_weighted:
            return ops.concatenate(chosen, axis=-1)
        shares = ops.softmax(ops.cast(self.layer_weights, "float32"))
        return sum(
            x * ops.cast(shares[n], x.dtype) for n, x in enumerate(chosen)
        )

    def compute_output_shape(self, hidden_states_shape, input_mask_shape=None):
        return (*hidden_states_shape[0][:2], self.num_labels)

    @property
    def options(self) -> dict:
        """What the constructor took beside the configuration."""
        return {
            "num_labels": self.num_labels,
            "layers": self.layer_choice,
            "lstm_size": self.lstm_size,
            "dropout": self.dropout.rate,
        }

    def get_config(self):
        return {**super().get_config(), **self.options}


@keras.saving.register_keras_serializable("bert_tf")
class BertFeatureTagger(TakesFeatures, Logits, FromConfig, keras.Model):
    """A tagger of tokens that learns from BERT's vectors and leaves it alone.

    No weight of the encoder is trained, no gradient goes into it, and its
    dropout is off in training too: the vectors of a text are always the same.

    Example:

        config = bert_tf.load_config("bert-base/")
        model = BertFeatureTagger(config, num_labels=9)
        bert_tf.load_checkpoint(model, "bert-base/")

    Source: section 5.3 and table 7 of the paper.

    Args:
      config: A `BertConfig`, or the dict that its `to_dict` gave.
      num_labels: Number of labels, C.
      layers: Which hidden states, one of `CHOICES`. `sum_` weighs them by a
        softmax over weights that are learned and begin as equals; `sum_all`
        is of all blocks, without the embeddings.
      lstm_size: Size of each of the two LSTMs, in each direction.
      dropout: Share of the values below the scores that training sets to 0.
    """

    def __init__(
        self,
        config: BertConfig | dict,
        num_labels: int,
        layers: str = "concat_last_four",
        lstm_size: int = 768,
        dropout: float = 0.1,
        name: str = "bert_feature_tagger",
        **kwargs,
    ):
        super().__init__(config, name=name, **kwargs)
        # As in `BertModel`: ids must not become floats of few digits.
        self.autocast = False
        self.bert = self.make_part(BertModel, "bert", output_hidden_states=True)
        self.bert.trainable = False
        # The name of the choice is in those of the weights: a checkpoint of
        # one is no start for another, whose shapes may be the same.
        self.head = self.make_part(
            FeatureHead,
            f"features_{layers}",
            num_labels=num_labels,
            layers=layers,
            lstm_size=lstm_size,
            dropout=dropout,
        )

    def build(self, input_shape=None):
        if self.built:
            return
        shapes = self.feature_shapes(input_shape)
        self.bert.build(shapes)
        states = self.bert.compute_output_shape(shapes)["hidden_states"]
        self.head.build(states, shapes["input_ids"])

    def call(self, inputs, training=False, seed=None):
        """Scores every token.

        Args:
          inputs: What `BertModel` takes.
          training: Whether the dropout below the scores is on.
          seed: Integer tensor [2] that decides its mask, or None.

        Returns:
          Dict of `logits`, float32 [B, S, C].
        """
        states = self.bert(inputs, training=False)["hidden_states"]
        logits = self.head(
            [ops.stop_gradient(x) for x in states],
            inputs.get("input_mask", ops.ones_like(inputs["input_ids"])),
            training=training,
            seed=fold_in(seed, HEAD_SITE),
        )
        return {"logits": logits}

    def compute_output_shape(self, input_shape):
        shape = self.bert.compute_output_shape(input_shape)["sequence_output"]
        return {"logits": (*shape[:2], self.head.num_labels)}

    def get_config(self):
        return {**super().get_config(), **self.head.options}
