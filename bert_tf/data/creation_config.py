"""What create_pretraining_data.py is asked for, checked."""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

from bert_tf import files
from bert_tf.data.instances import InstanceRule
from bert_tf.data.masking import MaskingRule
from bert_tf.data.schema import Schema, pretraining_schema
from bert_tf.data.text_files import FORMATS, TextFormat
from bert_tf.errors import InputError

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
class CreationConfig:
    """The settings of a job; each has the name of its flag.

    Attributes:
      input_file: Comma list of text files or globs: UTF-8.
      output_file: Comma list of TFRecord files, which get equal shares of the
        instances. Those that end in `.gz` are compressed.
      vocab_file: WordPiece vocabulary, one token a line.
      do_lower_case: Lower-cases, for uncased vocabularies.
      strip_accents: Drops accents; None does as `do_lower_case`.
      do_whole_word_mask: Masks all pieces of a word or none.
      max_seq_length: Length of an instance in tokens, specials counted.
      max_predictions_per_seq: Masked tokens of an instance at most.
      random_seed: 0 or more; the same seed gives the same bytes.
      dupe_factor: How often the text is cut into instances.
      masked_lm_prob: Share of the tokens that are masked.
      short_seq_prob: Share of instances that aim at a random shorter length.
      next_sentence: Pairs for next-sentence prediction, else one segment.
      mask_share: Share of the masked tokens that become [MASK].
      random_share: Share that become a random word.
      keep_share: Share that stay as they are; the three make 1.
      errors: What to do about bytes that are not UTF-8: strict, replace or
        ignore.
      input_format: "text", one sentence a line and blank lines between
        documents; or "jsonl", a JSON object a line for each document.
      jsonl_field: The field of such an object that holds the document, one
        sentence a line.
    """

    input_file: str
    output_file: str
    vocab_file: str
    do_lower_case: bool = True
    strip_accents: bool | None = None
    do_whole_word_mask: bool = False
    max_seq_length: int = 128
    max_predictions_per_seq: int = 20
    random_seed: int = 12345
    dupe_factor: int = 10
    masked_lm_prob: float = 0.15
    short_seq_prob: float = 0.1
    next_sentence: bool = True
    mask_share: float = 0.8
    random_share: float = 0.1
    keep_share: float = 0.1
    errors: str = "strict"
    input_format: str = "text"
    jsonl_field: str = "text"

    def __post_init__(self) -> None:
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
        yield (
            "errors",
            self.errors in DECODING_ERRORS,
            f"one of {', '.join(DECODING_ERRORS)}",
        )
        yield (
            "input_format",
            self.input_format in FORMATS,
            f"one of {', '.join(FORMATS)}",
        )

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

    def output_paths(self, inputs: Sequence[str]) -> list[str]:
        """The files to write.

        Raises:
          InputError: No path, a duplicate path, a device, or a path that would
            overwrite an input or the manifest.
        """
        named = [item.strip() for item in self.output_file.split(",")]
        paths = [item for item in named if item]
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
