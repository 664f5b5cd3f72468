"""create_pretraining_data.py with other replacements, for table 8."""

import dataclasses

from bert_tf import cli
from bert_tf.base.options import option
from bert_tf.jobs import pretraining_data


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskingConfig(pretraining_data.PretrainingDataConfig):
    """Options of this program."""

    mask_share: float = option(
        "Fraction of the masked tokens that become [MASK].", default=0.8
    )
    random_share: float = option(
        "Fraction of the masked tokens that become a random word.", default=0.1
    )
    keep_share: float = option(
        "Fraction of the masked tokens that are left unchanged.", default=0.1
    )


def run(config: MaskingConfig) -> None:
    """Writes the records."""
    pretraining_data.run(config)


if __name__ == "__main__":
    cli.main(run)
