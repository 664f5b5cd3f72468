"""The three pieces of work of data creation, each a pure function.

What a piece yields depends on the configuration, the files of earlier stages
and the piece's own number: not on who does it, when, or after what. `creation`
deals the pieces out; any other executor that keeps their order would do.
"""

import collections
import dataclasses
import functools
import os

import numpy as np

from bert_tf.data import (
    documents,
    instances,
    masking,
    permutation,
    records,
)
from bert_tf.data.creation_config import CreationConfig
from bert_tf.data.documents import Corpus, EncodedBlock, TextBlock
from bert_tf.text import wordpiece

# Names of what lies in the scratch folder.
SPANS = "spans"

NUM_SAMPLES = 5

# What a stream of random numbers is for, beside the seed of the job.
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
        return documents.token_dtype(len(self.tokenizer.vocab))


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


def _generator(
    config: CreationConfig, purpose: int, piece: int
) -> np.random.Generator:
    """The random numbers of one piece of work."""
    return np.random.default_rng((config.random_seed, purpose, piece))


def encode(
    config: CreationConfig, folder: str, block: TextBlock
) -> EncodedBlock:
    """Stage 1: tokenizes a block of text; needs nothing of the folder.

    Raises:
      InputError: It is not UTF-8, with `config.errors` "strict".
    """
    return documents.encode_block(
        block,
        tools(config).tokenizer,
        tools(config).token_dtype,
        config.errors,
    )


def cut(
    config: CreationConfig, folder: str, section: tuple[int, int]
) -> np.ndarray:
    """Stage 2: cuts sentences into instances, `dupe_factor` times.

    Args:
      config: The settings.
      folder: The scratch folder.
      section: The first sentence, and the one after the last.

    Returns:
      instances.SPAN [number of instances].
    """
    return instances.make_spans(
        Corpus.open(folder),
        section,
        config.dupe_factor,
        config.instance_rule,
        _generator(config, _CUTTING, section[0]),
    )


@dataclasses.dataclass(frozen=True)
class PartPlan:
    """A piece of stage 3: some of the instances of one output file.

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
    seed = config.random_seed, _SHUFFLING
    places = permutation.permute(ranks, plan.total, seed)
    spans = documents.read_slices(
        os.path.join(folder, SPANS),
        instances.SPAN,
        places,
        np.ones_like(places),
    )
    rng = _generator(config, _MASKING, plan.first)
    batch, counts = _batch(config, folder, spans, rng)
    data = records.frame(records.encode_batch(config.schema, batch))
    if plan.is_compressed:
        data = records.compress(data)
    num_samples = NUM_SAMPLES if plan.first == 0 else 0
    samples = {name: values[:num_samples] for name, values in batch.items()}
    return Part(plan.shard, len(ranks), data, counts, samples)


def _batch(
    config: CreationConfig,
    folder: str,
    spans: np.ndarray,
    rng: np.random.Generator,
) -> tuple[dict[str, np.ndarray], collections.Counter[str]]:
    """The features of instances, each [n, ...], and what is in them."""
    vocabulary = tools(config)
    sequences = instances.gather(
        functools.partial(
            documents.read_slices,
            os.path.join(folder, documents.TOKENS),
            vocabulary.token_dtype,
        ),
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
        rng,
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
