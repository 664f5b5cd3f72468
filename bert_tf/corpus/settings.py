"""The options of data creation and the values derived from them."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from bert_tf.base import files
from bert_tf.base.options import Options, option
from bert_tf.data.records import Schema, pretraining_schema
from bert_tf.errors import InputError, wrong_value

# What the random numbers of a job are for; see `CreationConfig.seed`.
SHUFFLING, CUTTING, MASKING = range(3)


@dataclasses.dataclass(frozen=True)
class PieceSizes:
    """How the work is divided.

    Attributes:
      sentences: The number of sentences that a worker cuts into instances at a
        time. Longer documents are divided into pieces of this size (see
        `text.Pieces`). Unlike the other sizes, it changes the records.
      instances: The number of instances that a worker writes at a time.
      text_bytes: The bytes of text that a worker of a cluster reads at a time.
    """

    sentences: int = 1 << 14
    instances: int = 1 << 11
    text_bytes: int = 1 << 24


DEFAULT_SIZES = PieceSizes()
# A cluster moves the instances that go from one section to one chunk together.
# With small chunks, it would move each instance alone.
CLUSTER_SIZES = PieceSizes(instances=1 << 14)


@dataclasses.dataclass(frozen=True)
class CreationConfig(Options):
    """The options that determine the contents of the record files."""

    input_file: str = option(
        "UTF-8 text files or globs, separated by commas (.gz and gs:// too).",
    )
    output_file: str = option(
        "TFRecord files to write, separated by commas; they get equal shares. "
        "A file whose name ends in .gz is compressed.",
    )
    vocab_file: str = option("WordPiece vocabulary, one token per line.")
    input_format: str = option(
        "text: one sentence per line, blank lines between documents. jsonl: "
        "one JSON object per line, each of which holds a document.",
        default="text",
        choices=("text", "jsonl"),
    )
    jsonl_field: str = option(
        "Field of the JSON objects that holds the text, one sentence per line.",
        default="text",
    )
    do_lower_case: bool = option(
        "Whether to lower-case the text, for uncased vocabularies.",
        default=True,
    )
    strip_accents: bool | None = option(
        "Whether to strip accents. Default: the same as --do_lower_case.",
        default=None,
    )
    do_whole_word_mask: bool = option(
        "Whether to mask all tokens of a word or none. Words are recognized by "
        "##, so this has no effect on Chinese.",
        default=False,
    )
    max_seq_length: int = option(
        "Length of an example in tokens, with padding.",
        default=128,
        at_least=5,  # [CLS], A, [SEP], B, [SEP] of one token each.
        at_most=10**5,
    )
    max_predictions_per_seq: int = option(
        "Largest number of masked tokens in an example, about max_seq_length "
        "times masked_lm_prob.",
        default=20,
        at_least=1,
        at_most=10**5,
    )
    random_seed: int = option(
        "The same seed gives the same files, byte for byte.",
        default=12345,
        at_least=0,
    )
    dupe_factor: int = option(
        "Number of passes over the text, each divided and masked differently.",
        default=10,
        at_least=1,
        at_most=10**6,
    )
    masked_lm_prob: float = option(
        "Fraction of the tokens to mask.", default=0.15, at_most=1
    )
    short_seq_prob: float = option(
        "Fraction of the examples that are made shorter than possible.",
        default=0.1,
        at_least=0,
        at_most=1,
    )
    next_sentence: bool = option(
        "Whether to write pairs of segments for next-sentence prediction; "
        "--nonext_sentence writes one segment of consecutive text.",
        default=True,
    )
    # The fractions of the masked tokens that become [MASK], become a random
    # word and stay as they are; table 8 of the paper.
    mask_share: float = 0.8
    random_share: float = 0.1
    keep_share: float = 0.1
    errors: str = option(
        "What to do about bytes that are not UTF-8. strict: stop with an "
        "error. replace: write U+FFFD instead. ignore: leave them out.",
        default="strict",
        choices=("strict", "replace", "ignore"),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.masked_lm_prob <= 0:
            raise wrong_value(
                "`masked_lm_prob`", "above 0", self.masked_lm_prob
            )
        shares = self.mask_share, self.random_share, self.keep_share
        if min(shares) < 0 or not math.isclose(sum(shares), 1):
            raise InputError(
                "`mask_share`, `random_share` and `keep_share` must be from 0 "
                "to 1 with a sum of 1; got {}, {} and {}.".format(*shares)
            )

    @property
    def schema(self) -> Schema:
        """The features of a record."""
        return pretraining_schema(
            self.max_seq_length, self.max_predictions_per_seq
        )

    @property
    def max_text_tokens(self) -> int:
        """The largest number of tokens of an instance, without special ones."""
        return self.max_seq_length - (3 if self.next_sentence else 2)

    def seed(self, purpose: int) -> tuple[int, int]:
        """Returns the seed for SHUFFLING, CUTTING or MASKING."""
        return self.random_seed, purpose

    def settings(self) -> dict[str, Any]:
        """Returns all options except the names of files."""
        return {
            name: value
            for name, value in dataclasses.asdict(self).items()
            if not name.endswith("_file")
        }

    def input_paths(self) -> list[str]:
        """Returns the text files in the order in which they are read."""
        return files.expand(self.input_file, "input_file")

    @property
    def named_outputs(self) -> list[str]:
        """The items of `output_file`, unchecked."""
        named = [item.strip() for item in self.output_file.split(",")]
        return [item for item in named if item]

    def output_paths(self, inputs: Sequence[str]) -> list[str]:
        """Returns the files to write.

        Raises:
          InputError: If there is a duplicate path, or a path that is not a
            file or would overwrite an input or the manifest.
        """
        paths = self.named_outputs
        files.check_outputs(
            {"output": paths, "manifest": [files.manifest_path(paths[0])]},
            {"text": inputs, "vocabulary": [self.vocab_file]},
        )
        return paths
