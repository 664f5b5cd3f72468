"""Predicts masked words with a pre-trained model.

    python fill_mask.py \\
        --init_checkpoint=/tmp/pretraining_output/release \\
        --text="The capital of France is [MASK]."

prints the most probable words for every [MASK], with their probabilities. With
--text_b, it also prints the probability that --text_b follows --text, and no
text needs a [MASK]. Without --text, it reads a text, or a pair
`first ||| second`, from each line of the standard input.

--do_export --export_dir=DIR writes a SavedModel for TensorFlow Serving that
fills in the masked words of texts. No text is read then.
"""

import dataclasses

from bert_tf.base.options import option
from bert_tf.errors import InputError
from bert_tf.jobs.settings import ExportDirOptions, PretrainedOptions


@dataclasses.dataclass(frozen=True, kw_only=True)
class FillMaskConfig(PretrainedOptions, ExportDirOptions):
    """Options of `fill_mask.py`."""

    text: str | None = option(
        "Text with one or more [MASK]; with --text_b, any text.", default=None
    )
    text_b: str | None = option(
        "Text that may follow --text; the model says how likely that is.",
        default=None,
    )
    top_k: int = option(
        "Number of words to show per [MASK].", default=5, at_least=1
    )

    def check(self) -> None:
        if self.text_b is not None and self.text is None:
            raise InputError("`text_b` needs `text`, the text before it.")
        if self.do_export and self.text is not None:
            raise InputError("`do_export` and `text` exclude each other.")
        self.require_export_dir()
        self.require_model(self.init_checkpoint)
