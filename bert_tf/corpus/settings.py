"""What create_pretraining_data.py is asked for, checked."""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

from bert_tf import files
from bert_tf.corpus.instances import InstanceRule
from bert_tf.corpus.masking import MaskingRule
from bert_tf.corpus.text import FORMATS, TextFormat
from bert_tf.data.schema import Schema, pretraining_schema
from bert_tf.errors import InputError
from bert_tf.options import Options, option

# [CLS], A, [SEP], B, [SEP] of one token each.
MIN_SEQ_LENGTH = 5
DECODING_ERRORS = ("strict", "replace", "ignore")


@dataclasses.dataclass(frozen=True)
class PieceSizes:
    """How large the pieces of work are.

    Attributes:
      sentences: What a worker cuts into instances at a time, and what a long
        document is divided into. Like the seed, it decides which random
        numbers fall where: a change gives other records.
      instances: What a worker writes at a time.
      text_bytes: What a worker of a cluster reads at a time.
    """

    sentences: int = 1 << 14
    instances: int = 1 << 11
    text_bytes: int = 1 << 24


DEFAULT_SIZES = PieceSizes()


@dataclasses.dataclass(frozen=True)
class CreationConfig(Options):
    """What decides the contents of the record files."""

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
        choices=FORMATS,
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
        "Whether to mask all pieces of a word or none. Pieces are joined to "
        "words by their ##, so this has no effect on Chinese.",
        default=False,
    )
    max_seq_length: int = option(
        "Length of an example in tokens, with padding.",
        default=128,
        at_most=10**5,
    )
    max_predictions_per_seq: int = option(
        "Largest number of masked tokens in an example, about max_seq_length "
        "times masked_lm_prob.",
        default=20,
        at_most=10**5,
    )
    random_seed: int = option(
        "The same seed gives the same files, byte for byte.", default=12345
    )
    dupe_factor: int = option(
        "Number of passes over the text, each divided and masked differently.",
        default=10,
        at_most=10**6,
    )
    masked_lm_prob: float = option(
        "Fraction of the tokens to mask.", default=0.15
    )
    short_seq_prob: float = option(
        "Fraction of the examples that are made shorter than possible.",
        default=0.1,
    )
    next_sentence: bool = option(
        "Whether to write pairs of segments for next-sentence prediction; "
        "--nonext_sentence writes one segment of consecutive text.",
        default=True,
    )
    mask_share: float = option(
        "Fraction of the masked tokens that become [MASK].", default=0.8
    )
    random_share: float = option(
        "Fraction of the masked tokens that become a random word.", default=0.1
    )
    keep_share: float = option(
        "Fraction of the masked tokens that stay as they are.", default=0.1
    )
    errors: str = option(
        "What to do about bytes that are not UTF-8: stop, replace or ignore "
        "them.",
        default="strict",
        choices=DECODING_ERRORS,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, holds, expected in self._rules():
            if not holds:
                raise InputError(
                    f"Expected {name} to be {expected}. Received: "
                    f"--{name}={getattr(self, name)}"
                )
        shares = self.mask_share, self.random_share, self.keep_share
        if min(shares) < 0 or not math.isclose(sum(shares), 1):
            raise InputError(
                "Expected shares from 0 to 1 that make 1 together. Received: "
                "--mask_share={} --random_share={} --keep_share={}".format(
                    *shares
                )
            )

    def _rules(self) -> Iterator[tuple[str, bool, str]]:
        """Yields (setting, whether it can be used, what it has to be)."""
        yield (
            "max_seq_length",
            self.max_seq_length >= MIN_SEQ_LENGTH,
            f"{MIN_SEQ_LENGTH} or more, for [CLS] A [SEP] B [SEP]",
        )
        for name in "max_predictions_per_seq", "dupe_factor":
            yield name, getattr(self, name) >= 1, "1 or more"
        yield "random_seed", self.random_seed >= 0, "0 or more"
        yield (
            "masked_lm_prob",
            0 < self.masked_lm_prob <= 1,
            "above 0 and at most 1",
        )
        yield "short_seq_prob", 0 <= self.short_seq_prob <= 1, "from 0 to 1"

    @property
    def schema(self) -> Schema:
        """The features of a record."""
        return pretraining_schema(
            self.max_seq_length, self.max_predictions_per_seq
        )

    @property
    def text_format(self) -> TextFormat:
        is_jsonl = self.input_format == "jsonl"
        return TextFormat(self.errors, self.jsonl_field if is_jsonl else None)

    @property
    def instance_rule(self) -> InstanceRule:
        return InstanceRule(
            self.max_seq_length, self.short_seq_prob, self.next_sentence
        )

    @property
    def masking_rule(self) -> MaskingRule:
        return MaskingRule(
            self.max_predictions_per_seq,
            self.masked_lm_prob,
            self.do_whole_word_mask,
            self.mask_share,
            self.random_share,
        )

    def settings(self) -> dict[str, Any]:
        """All but the names of files."""
        return {
            name: value
            for name, value in dataclasses.asdict(self).items()
            if not name.endswith("_file")
        }

    def input_paths(self) -> list[str]:
        """The files of text, in the order in which they are read."""
        return files.expand(self.input_file, flag="input_file")

    @property
    def named_outputs(self) -> list[str]:
        """The files to write, which may be impossible."""
        named = [item.strip() for item in self.output_file.split(",")]
        return [item for item in named if item]

    def output_paths(self, inputs: Sequence[str]) -> list[str]:
        """The files to write.

        Raises:
          InputError: No path, a duplicate path, a device, or a path that would
            overwrite an input or the manifest.
        """
        paths = self.named_outputs
        if not paths:
            raise InputError(
                "Expected a comma-separated list of files to write. Received: "
                f"--output_file={self.output_file}"
            )
        special = next(filter(files.is_special, paths), None)
        if special:
            raise InputError(
                f"--output_file must name files; {special} is a device or a "
                "pipe, which has no place for a manifest. Name a file."
            )
        files.check_outputs(
            {"output": paths, "manifest": [files.manifest_path(paths[0])]},
            {"text": inputs, "vocabulary": [self.vocab_file]},
        )
        return paths
