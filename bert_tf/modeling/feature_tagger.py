"""A frozen BERT with a trained network on top: the feature-based approach.

Source: section 5.3 and table 7 of the paper. Two bidirectional LSTMs read
hidden states of the encoder, and a linear layer scores each label at each
position. The shape letters are explained at the top of `modeling.py`; C is the
number of labels, L the size of an LSTM.
"""

import keras
from keras import ops

from bert_tf.config import MAX_SIZE, BertConfig, positive_integer
from bert_tf.errors import InputError
from bert_tf.kinds.vectors.hidden_states import choose
from bert_tf.modeling.encoder import BertModel
from bert_tf.modeling.feature_model import FeatureModel
from bert_tf.modeling.heads import (
    HEAD_SITE,
    add_output_weights,
    make_bilstm,
    score,
)
from bert_tf.modeling.transformer import BertLayer, fold_in

NUM_LSTMS = 2


@keras.saving.register_keras_serializable("bert_tf")
class FeatureHead(BertLayer):
    """Maps hidden states to a score for each label at each position.

    Takes the arguments of `BertFeatureTagger`.

    Raises:
      InputError: If a value is wrong, or the model has too few layers.
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
        self.num_labels = positive_integer("num_labels", num_labels, MAX_SIZE)
        self.lstm_size = positive_integer("lstm_size", lstm_size, MAX_SIZE)
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
        add_output_weights(self, self.num_labels, width)

    def call(self, hidden_states, input_mask, training=False, seed=None):
        """Scores every position, including padding.

        Args:
          hidden_states: The embeddings and the output of every block, a list of
            floats [B, S, H].
          input_mask: Integers [B, S]: 0 for padding, which the LSTMs skip.
          training, seed: See `Dropout`.

        Returns:
          Logits, float32 [B, S, C].
        """
        x = self.combine(hidden_states)
        mask = ops.cast(input_mask, "bool")
        for lstm in self.lstms:
            x = lstm(x, mask=mask)  # [B, S, 2 L]
        return score(self, self.dropout(x, training=training, seed=seed))

    def combine(self, hidden_states):
        """Combines the chosen states to [B, S, H or a multiple of it]."""
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
        """The constructor's arguments, without the config."""
        return {
            "num_labels": self.num_labels,
            "layers": self.layer_choice,
            "lstm_size": self.lstm_size,
            "dropout": self.dropout.rate,
        }

    def get_config(self):
        return {**super().get_config(), **self.options}


@keras.saving.register_keras_serializable("bert_tf")
class BertFeatureTagger(FeatureModel):
    """A tagger of tokens that trains a network on top of a frozen BERT.

    No gradient goes into the encoder, and its dropout is always off, so a text
    always has the same vectors.

    Example:

        config = bert_tf.load_config("bert-base/")
        model = BertFeatureTagger(config, num_labels=9)
        bert_tf.load_checkpoint(model, "bert-base/")

    Source: section 5.3 and table 7 of the paper.

    Args:
      num_labels: Number of labels, C.
      layers: The hidden states to use, one of `hidden_states.CHOICES`. `sum_`
        choices weight them by a softmax over learned weights, which starts
        uniform; `sum_all` uses all blocks, without the embeddings.
      lstm_size: Size L of each of the two LSTMs, in each direction.
      dropout: Dropout rate of the vectors that are scored.
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
        self.bert = BertModel(
            self.config, output_hidden_states=True, dtype=self.dtype_policy
        )
        self.bert.trainable = False
        # The choice is part of the variables' names: weights for one choice
        # are wrong for another, even if their shapes agree.
        self.head = FeatureHead(
            self.config,
            num_labels=num_labels,
            layers=layers,
            lstm_size=lstm_size,
            dropout=dropout,
            name=f"features_{layers}",
            dtype=self.dtype_policy,
        )

    def enable_lora(self, *args, **kwargs):
        """Raises InputError: no gradient goes into the encoder."""
        raise InputError(
            "A BertFeatureTagger trains nothing in its encoder. Use "
            "enable_lora of a BertTokenClassifier."
        )

    def build(self, input_shape=None):
        if self.built:
            return
        shapes = self.feature_shapes(input_shape)
        self.bert.build(shapes)
        states = self.bert.compute_output_shape(shapes)["hidden_states"]
        self.head.build(states, shapes["input_ids"])

    def call(self, inputs, training=False, seed=None):
        """Scores every token; see `BertModel.call` for the arguments.

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
