"""run_ner.py with LSTMs on vectors of a frozen BERT: a row of table 7."""

import dataclasses
import functools

from lstms import FeatureTagging

from bert_tf import cli
from bert_tf.base.options import option
from bert_tf.kinds.tags import job as ner
from bert_tf.kinds.vectors.features import CHOICES


@dataclasses.dataclass(frozen=True, kw_only=True)
class FeatureConfig(ner.NerConfig):
    """Options of this program."""

    feature_layers: str = option(
        "Hidden states that the LSTMs read. sum_ adds them with learned "
        "weights.",
        default="concat_last_four",
        choices=tuple(CHOICES),
        decides="model",
    )
    lstm_size: int = option(
        "Units in each direction.", default=768, at_least=1, decides="model"
    )


def run(config: FeatureConfig) -> None:
    """Trains and evaluates."""
    ner.run(
        config,
        functools.partial(
            FeatureTagging,
            layers=config.feature_layers,
            lstm_size=config.lstm_size,
        ),
    )


if __name__ == "__main__":
    cli.main(run)
