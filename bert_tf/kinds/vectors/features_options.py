"""Writes BERT's vectors of texts to a file, as features for other models.

    python extract_features.py \\
        --input_file=/tmp/input.txt --output_file=/tmp/output.jsonl \\
        --init_checkpoint=uncased_L-12_H-768_A-12/bert_model.ckpt \\
        --layers=-1,-2,-3,-4 --max_seq_length=128

--input_file has a text, or a pair `first ||| second`, per line. The output has
the same order. It is the original's JSON lines with the vectors of every token,
or the much smaller --output_format=npz. --pooling=mean gives one vector per
text, and --layers also accepts names such as concat_last_four. The
configuration, vocabulary and casing are read from the checkpoint; use
--bert_config_file, --vocab_file and --do_lower_case if it does not contain
them.

--do_export --export_dir=DIR writes a SavedModel for TensorFlow Serving that
takes texts and returns the vectors of --layers and --pooling or, without them,
two vectors per text. It needs no --input_file.
Source: `extract_features.py` of google-research/bert; section 5.3 of the paper.
"""

import dataclasses

from bert_tf.base import files
from bert_tf.base.options import option
from bert_tf.config import TOKEN_POOLINGS
from bert_tf.errors import InputError, listed, wrong_value
from bert_tf.jobs import settings
from bert_tf.jobs.settings import (
    MOST_EXAMPLES,
    MOST_TOKENS,
    DeviceOptions,
    ExportDirOptions,
    PretrainedOptions,
)
from bert_tf.tasks.encoding import WINDOW_POOLINGS


@dataclasses.dataclass(frozen=True, kw_only=True)
class FeaturesConfig(PretrainedOptions, ExportDirOptions, DeviceOptions):
    """Options of `extract_features.py`."""

    input_file: str | None = option(
        "UTF-8 text file with a text, or a pair `first ||| second`, per line.",
        default=None,
        per_worker=True,
    )
    output_file: str | None = option(
        "File to write.", default=None, per_worker=True
    )
    output_format: str = option(
        "jsonl: the original's format, 32 kB per token of BERT-Base; npz: for "
        "numpy.load.",
        default="jsonl",
        choices=("jsonl", "npz"),
    )
    layers: str = option(
        "Layers: numbers (0 is the first, -1 the last), layer_0 and so on, "
        "all, or a row of table 7 of the paper: embeddings, second_to_last, "
        "last, sum_last_four, concat_last_four, sum_all. By default the last "
        "four, or all of a model that has fewer.",
        fallback="-1,-2,-3,-4",
    )
    pooling: str = option(
        "none: a vector per token. cls, mean, max: one vector per text, the "
        "vector of [CLS], or the mean or maximum over the tokens, [CLS] and "
        "[SEP] included.",
        fallback="none",
        choices=("none", *TOKEN_POOLINGS),
    )
    max_seq_length: int = option(
        "Largest number of tokens of a text, [CLS] and [SEP] included; longer "
        "texts are truncated.",
        fallback=128,
        at_least=3,
        at_most=MOST_TOKENS,
        recorded=True,
    )
    doc_stride: int | None = option(
        "Reads longer texts in windows of --max_seq_length tokens that start "
        "this many tokens apart. Needs --pooling=mean or max: the vectors "
        "cover all windows.",
        default=None,
        at_least=1,
        at_most=MOST_TOKENS,
    )
    batch_size: int = option(
        "Number of texts of --max_seq_length in a batch. A batch of shorter "
        "texts holds more.",
        default=32,
        at_least=1,
        at_most=MOST_EXAMPLES,
    )
    use_one_hot_embeddings: bool = option(
        "Ignored, for old command lines: the results are the same.",
        default=False,
    )

    def check(self) -> None:
        needed = {"input_file", "output_file"}
        present = {name for name in needed if getattr(self, name)}
        if present != needed and (present or not self.do_export):
            missing = listed(f"`{name}`" for name in sorted(needed - present))
            raise InputError(
                f"{missing} must be passed: `input_file` and `output_file` are "
                "required, except to export only."
            )
        self.require_export_dir()
        if self.doc_stride is not None and self.do_export:
            raise InputError("`do_export` does not support `doc_stride`.")
        pooling = self.with_fallbacks().pooling
        if self.doc_stride is not None and pooling not in WINDOW_POOLINGS:
            raise wrong_value(
                "`pooling`", "mean or max with `doc_stride`", pooling
            )
        if self.input_file and self.output_file:
            files.check_outputs(
                {"output file": [self.output_file]},
                {"input file": [self.input_file]},
            )
        self.require_devices()
        self.require_model(self.init_checkpoint)
        settings.require_files(self.input_file)
