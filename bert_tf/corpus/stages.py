"""Which instance goes where: into equal shares, and these into parts.

The instances are shuffled as a whole; the ranks of the shuffle are dealt out
to the output files one after the other. A part is what one worker writes at a
time.
"""

import collections
import dataclasses
import functools
import os
from collections.abc import Iterator

import numpy as np

from bert_tf.corpus import instances, masking, text
from bert_tf.corpus.settings import CreationConfig
from bert_tf.corpus.text import Corpus, EncodedBlock, Section, TextBlock
from bert_tf.data import randomness, records
from bert_tf.errors import InputError
from bert_tf.tokenization import wordpiece

# Which instance goes where: into equal shares, and these into parts.


@dataclasses.dataclass(frozen=True)
class PartPlan:
    """Some of the instances of one output file.

    Attributes:
      shard: The number of the output file.
      first: Rank of the first instance in the shuffle of all.
      stop: Rank after the last.
      total: The number of all instances.
      is_compressed: The file is a gzip file.
    """

    shard: int
    first: int
    stop: int
    total: int
    is_compressed: bool


@dataclasses.dataclass(frozen=True)
class Dealing:
    """Deals instances out to files, as evenly as can be.

    Attributes:
      paths: The files.
      total: The number of all instances.
      part_size: Instances of a part at most.

    Raises:
      InputError: There are more files than instances.
    """

    paths: tuple[str, ...]
    total: int
    part_size: int

    def __post_init__(self) -> None:
        if self.total < len(self.paths):
            raise InputError(
                "Expected as many instances as output files at least. "
                f"Received: {self.total} instances for {len(self.paths)} "
                "files; name fewer"
            )

    def plans(self) -> Iterator[PartPlan]:
        """Yields all parts, in the order of the ranks."""
        for shard in range(len(self.paths)):
            start, stop = self._bound(shard), self._bound(shard + 1)
            for first in range(start, stop, self.part_size):
                yield self._plan(shard, first)

    def plan(self, first: int) -> PartPlan:
        """The part that begins with a rank."""
        return self._plan(int(self._shards(np.array([first]))[0]), first)

    def part_starts(self, ranks: np.ndarray) -> np.ndarray:
        """The rank that begins the part of each of these: int64 [n]."""
        start = self._bounds()[self._shards(ranks)]
        return start + (ranks - start) // self.part_size * self.part_size

    def _plan(self, shard: int, first: int) -> PartPlan:
        stop = min(first + self.part_size, self._bound(shard + 1))
        is_compressed = self.paths[shard].endswith(".gz")
        return PartPlan(shard, first, stop, self.total, is_compressed)

    def _shards(self, ranks: np.ndarray) -> np.ndarray:
        return np.searchsorted(self._bounds(), ranks, "right") - 1

    def _bounds(self) -> np.ndarray:
        """The rank that each file begins with: int64 [files]."""
        return np.array([self._bound(n) for n in range(len(self.paths))])

    def _bound(self, shard: int) -> int:
        return self.total * shard // len(self.paths)


# The three pieces of work of data creation, each a pure function.


# Names of what lies in the scratch folder.
SPANS = "spans"

NUM_SAMPLES = 5

# What random numbers are for, beside the seed of the job.
_SHUFFLING, _CUTTING, _MASKING = range(3)


@dataclasses.dataclass(frozen=True)
class Tools:
    """What a process needs of the vocabulary."""

    tokenizer: wordpiece.FullTokenizer
    masking: masking.MaskingVocabulary
    cls_id: int
    sep_id: int
    unk_id: int

    @property
    def token_dtype(self) -> np.dtype:
        return text.token_dtype(len(self.tokenizer.vocab))


@functools.lru_cache(maxsize=1)
def tools(config: CreationConfig) -> Tools:
    """Loads the vocabulary, once in each process.

    Raises:
      InputError: The vocabulary is unusable or lacks a special token.
    """
    _keep_freed_memory()
    tokenizer = wordpiece.FullTokenizer(
        config.vocab_file, config.do_lower_case, config.strip_accents
    )
    names = ["[CLS]", "[SEP]", "[UNK]", "[MASK]"]
    wordpiece.require_special_tokens(tokenizer.vocab, names, config.vocab_file)
    cls_id, sep_id, unk_id, mask_id = tokenizer.convert_tokens_to_ids(names)
    is_replaceable = wordpiece.replaceable_ids(tokenizer.inv_vocab)
    return Tools(
        tokenizer,
        masking.MaskingVocabulary(
            mask_id,
            (cls_id, sep_id),
            np.flatnonzero(is_replaceable),
            wordpiece.continuation_mask(tokenizer.inv_vocab),
        ),
        cls_id,
        sep_id,
        unk_id,
    )


def _keep_freed_memory() -> None:
    """Makes glibc keep the memory of large arrays for the next ones.

    It hands freed blocks above a threshold back to the system, and each page
    of the next array is a page fault: a fifth of all CPU time here. The
    threshold becomes the size of a larger block when that is freed, which is
    what happens to this one. Other systems do not mind.
    """
    np.empty(16 << 20, np.uint8)


def encode(
    config: CreationConfig, folder: str, block: TextBlock
) -> EncodedBlock:
    """Stage 1: tokenizes a block of text; needs nothing of the folder.

    Raises:
      InputError: It is not UTF-8, with `config.errors` "strict", or not what
        `config.input_format` says.
    """
    return text.encode_block(
        block,
        tools(config).tokenizer,
        tools(config).token_dtype,
        config.text_format,
    )


@dataclasses.dataclass(frozen=True)
class CutPlan:
    """A piece of stage 2: some of the sentences.

    Attributes:
      first: The first sentence.
      stop: The one after the last.
      piece_size: As `size` of `documents.Pieces`.
    """

    first: int
    stop: int
    piece_size: int


def cut(config: CreationConfig, folder: str, plan: CutPlan) -> np.ndarray:
    """Stage 2: cuts sentences into instances, `dupe_factor` times.

    Returns:
      instances.SPAN [number of instances].
    """
    corpus = Corpus.open(folder)
    section = corpus.section(plan.first, plan.stop)
    if not config.next_sentence:
        return single_spans(config, section, plan.piece_size)
    drafts = draft_pairs(config, section, plan.piece_size, corpus.num_documents)
    is_random = drafts["is_random_next"]
    asking = drafts[is_random]
    drafts["b_start"][is_random], drafts["b_stop"][is_random] = (
        text.read_segments(
            folder,
            asking["other_document"],
            asking["point"],
            asking["wanted"],
            plan.piece_size,
        )
    )
    return instances.truncate(drafts, config.instance_rule.room)


def draft_pairs(
    config: CreationConfig, section: Section, piece_size: int, documents: int
) -> np.ndarray:
    """A section's pairs; see `instances.draft_pairs`."""
    return instances.draft_pairs(
        section,
        piece_size,
        documents,
        config.dupe_factor,
        config.instance_rule,
        (config.random_seed, _CUTTING),
    )


def single_spans(
    config: CreationConfig, section: Section, piece_size: int
) -> np.ndarray:
    """A section's single segments; see `instances.single_spans`."""
    return instances.single_spans(
        section,
        piece_size,
        config.dupe_factor,
        config.instance_rule,
        (config.random_seed, _CUTTING),
    )


@dataclasses.dataclass(frozen=True)
class Part:
    """What becomes of a PartPlan.

    Attributes:
      shard: The number of the output file.
      num_instances: How many they are.
      data: What is to be appended to the file.
      counts: What is in the instances, by the manifest's names.
      samples: Some features [NUM_SAMPLES, ...] of a shuffle's first instances,
        to look at; otherwise empty.
    """

    shard: int
    num_instances: int
    data: bytes
    counts: collections.Counter[str]
    samples: dict[str, np.ndarray]


def make_part(config: CreationConfig, folder: str, plan: PartPlan) -> Part:
    """Stage 3: fetches, masks and serializes instances."""
    ranks = np.arange(plan.first, plan.stop)
    places = randomness.permute(ranks, plan.total, shuffling_seed(config))
    spans = text.read_slices(
        os.path.join(folder, SPANS),
        instances.SPAN,
        places,
        np.ones_like(places),
    )
    read = functools.partial(
        text.read_slices,
        os.path.join(folder, text.TOKENS),
        tools(config).token_dtype,
    )
    return part_of(config, plan, places, spans, read)


def shuffling_seed(config: CreationConfig) -> tuple[int, int]:
    """Chooses the shuffle of all instances; see `permutation`."""
    return config.random_seed, _SHUFFLING


def part_of(
    config: CreationConfig,
    plan: PartPlan,
    places: np.ndarray,
    spans: np.ndarray,
    read: instances.Reader,
) -> Part:
    """Masks and serializes instances.

    Args:
      config: The settings.
      plan: Which instances they are.
      places: Integers [n], the number of each before the shuffle.
      spans: instances.SPAN [n], in the order of the plan's ranks.
      read: Fetches their tokens; see `instances.gather`.
    """
    batch, counts = _batch(config, places, spans, read)
    data = records.frame(records.encode_batch(config.schema, batch))
    if plan.is_compressed:
        data = records.compress(data)
    num_samples = NUM_SAMPLES if plan.first == 0 else 0
    samples = {name: values[:num_samples] for name, values in batch.items()}
    return Part(plan.shard, len(places), data, counts, samples)


def _batch(
    config: CreationConfig,
    places: np.ndarray,
    spans: np.ndarray,
    read: instances.Reader,
) -> tuple[dict[str, np.ndarray], collections.Counter[str]]:
    """The features of instances, each [n, ...], and what is in them."""
    vocabulary = tools(config)
    sequences = instances.gather(
        read,
        spans,
        config.max_seq_length,
        vocabulary.cls_id,
        vocabulary.sep_id,
    )
    masked = masking.mask(
        sequences.input_ids,
        sequences.input_mask,
        config.masking_rule,
        vocabulary.masking,
        randomness.keys((config.random_seed, _MASKING), places),
    )
    batch = {
        "input_ids": masked.input_ids,
        "input_mask": sequences.input_mask,
        "segment_ids": sequences.segment_ids,
        "masked_lm_positions": masked.positions,
        "masked_lm_ids": masked.ids,
        "masked_lm_weights": masked.weights,
        "next_sentence_labels": spans["is_random_next"][:, np.newaxis],
    }
    counts = collections.Counter(
        random_next=int(spans["is_random_next"].sum()),
        instance_tokens=int(sequences.input_mask.sum()),
        masked_as_mask=masked.num_mask,
        masked_as_random=masked.num_random,
        masked_as_kept=masked.num_kept,
    )
    return batch, counts
