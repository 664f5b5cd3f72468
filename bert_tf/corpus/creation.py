"""Creates pre-training records from text on one machine.

`create` runs three stages, each divided into pieces of work for a pool of
processes: `encode` (text to token ids), `cut` (token ids to instances) and
`write_chunk` (instances to masked, serialized records). Random numbers do
not depend on processes, so any number of workers writes the same bytes.
`engines` run the same functions on a cluster.
"""

import collections
import contextlib
import dataclasses
import functools
import hashlib
import itertools
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from io import BufferedIOBase
from typing import Any

import numpy as np
import numpy.typing as npt
from absl import logging

from bert_tf.base import files, processes
from bert_tf.corpus import instances, masking, text
from bert_tf.corpus.settings import (
    DEFAULT_SIZES,
    MASKING,
    SHUFFLING,
    CreationConfig,
    PieceSizes,
)
from bert_tf.corpus.text import Corpus, EncodedBlock, TextBlock
from bert_tf.data import randomness, records
from bert_tf.errors import InputError
from bert_tf.tokenization import vocabulary_file, wordpiece
from bert_tf.version import __version__

# The number of instances to log.
NUM_SAMPLES = 5
# The file in the scratch folder with the spans of all instances, unshuffled.
SPANS = "spans"

# `check_instances` warns above these fractions.
_SUSPICIOUS_UNKNOWN = 0.1
_SUSPICIOUS_DROPPED = 0.05


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """The tokenizer and the ids that data creation needs."""

    tokenizer: wordpiece.FullTokenizer
    masking: masking.MaskingVocabulary
    cls_id: int
    sep_id: int
    unk_id: int
    token_dtype: np.dtype


@functools.lru_cache(maxsize=1)
def load_vocabulary(config: CreationConfig) -> Vocabulary:
    """Loads and checks the vocabulary, once in each process."""
    # By default glibc returns freed blocks above a threshold to the system,
    # which costs a fifth of the CPU time in page faults. Freeing one large
    # block raises the threshold to its size, so that later arrays reuse memory.
    np.empty(16 << 20, np.uint8)
    tokenizer = wordpiece.FullTokenizer(
        config.vocab_file, config.do_lower_case, config.strip_accents
    )
    names = ["[CLS]", "[SEP]", "[UNK]", "[MASK]"]
    vocabulary_file.require_special_tokens(
        tokenizer.vocab, names, config.vocab_file
    )
    cls_id, sep_id, unk_id, mask_id = tokenizer.convert_tokens_to_ids(names)
    return Vocabulary(
        tokenizer,
        masking.MaskingVocabulary(
            mask_id,
            (cls_id, sep_id),
            np.flatnonzero(wordpiece.replaceable_ids(tokenizer.inv_vocab)),
            wordpiece.continuation_mask(tokenizer.inv_vocab),
        ),
        cls_id,
        sep_id,
        unk_id,
        # The narrowest type that holds every id.
        np.min_scalar_type(len(tokenizer.vocab) - 1),
    )


def encode(config: CreationConfig, block: TextBlock) -> EncodedBlock:
    """Stage 1: tokenizes a block of text; see `text.encode_block`."""
    vocabulary = load_vocabulary(config)
    is_jsonl = config.input_format == "jsonl"
    return text.encode_block(
        block,
        vocabulary.tokenizer,
        vocabulary.token_dtype,
        config.errors,
        config.jsonl_field if is_jsonl else None,
    )


def cut(
    config: CreationConfig, folder: str, size: int, bounds: tuple[int, int]
) -> np.ndarray:
    """Stage 2: cuts sentences into instances, `dupe_factor` times.

    Args:
      folder: The folder of the corpus.
      size: See `text.Pieces`.
      bounds: The first sentence and the end, from `instances.sections`.

    Returns:
      instances.SPAN [number of instances].
    """
    corpus = Corpus.open(folder)
    section = corpus.section(*bounds)
    if not config.next_sentence:
        return instances.single_spans(config, section, size)
    drafts = instances.draft_pairs(config, section, size, corpus.num_documents)
    is_random = drafts["is_random_next"]
    asking = drafts[is_random]
    first, end = corpus.sentence_range(asking["other_document"])
    instances.place_random_b(asking, corpus, first, end - first, size)
    drafts[is_random] = asking
    return instances.truncate(drafts, config.max_text_tokens)


@dataclasses.dataclass(frozen=True)
class Chunk:
    """The instances of one output file that one worker writes at a time.

    They have the ranks [first, stop) in the shuffled order of all instances.
    """

    shard: int  # The number of the output file.
    first: int
    stop: int
    total: int  # The number of all instances.
    is_compressed: bool  # Whether the file is a gzip file.


@dataclasses.dataclass(frozen=True)
class OutputPlan:
    """Assigns the ranks of all instances to output files, in equal shares.

    For example, 10 instances for 2 files in chunks of 4 give the chunks [0, 4)
    and [4, 5) of the first file and [5, 9) and [9, 10) of the second.

    Raises:
      InputError: If there are more files than instances.
    """

    paths: tuple[str, ...]
    total: int  # The number of all instances.
    chunk_size: int  # The largest number of instances of a chunk.

    def __post_init__(self) -> None:
        if self.total < len(self.paths):
            raise InputError(
                f"The text yields only {self.total} instances for "
                f"{len(self.paths)} files. Pass fewer files in `output_file`."
            )

    def chunks(self) -> Iterator[Chunk]:
        """Yields all chunks in the order of their ranks."""
        for start, stop in itertools.pairwise(self._bounds()):
            for first in range(start, stop, self.chunk_size):
                yield self.chunk(first)

    def chunk(self, first: int) -> Chunk:
        """Returns the chunk that begins with a rank."""
        bounds = self._bounds()
        shard = int(np.searchsorted(bounds, first, "right")) - 1
        stop = min(first + self.chunk_size, int(bounds[shard + 1]))
        is_compressed = self.paths[shard].endswith(".gz")
        return Chunk(shard, first, stop, self.total, is_compressed)

    def chunk_starts(self, ranks: np.ndarray) -> np.ndarray:
        """Returns, for each rank, the first rank of its chunk: int64 [n]."""
        bounds = self._bounds()
        start = bounds[np.searchsorted(bounds, ranks, "right") - 1]
        return start + (ranks - start) // self.chunk_size * self.chunk_size

    def _bounds(self) -> np.ndarray:
        """Returns the first rank of each file, and the total: [files + 1]."""
        count = len(self.paths)
        return np.array([self.total * n // count for n in range(count + 1)])


@dataclasses.dataclass(frozen=True)
class WrittenChunk:
    """The records of a chunk.

    In the first chunk, `samples` has features [NUM_SAMPLES, ...] for the log.
    """

    shard: int  # The number of the output file.
    num_instances: int
    data: bytes  # To append to the file.
    counts: collections.Counter[str]  # By their names in the manifest.
    samples: dict[str, np.ndarray]


def write_chunk(
    config: CreationConfig, folder: str, chunk: Chunk
) -> WrittenChunk:
    """Stage 3: reads, masks and serializes instances."""
    spans = np.memmap(os.path.join(folder, SPANS), instances.SPAN, "r")
    tokens = np.memmap(
        os.path.join(folder, text.TOKENS),
        load_vocabulary(config).token_dtype,
        "r",
    )
    return serialize_chunk(
        config,
        chunk,
        np.asarray(spans)[chunk_numbers(config, chunk)],
        functools.partial(text.take_slices, np.asarray(tokens)),
    )


def chunk_numbers(config: CreationConfig, chunk: Chunk) -> np.ndarray:
    """Returns the numbers of a chunk's instances in the unshuffled order."""
    ranks = np.arange(chunk.first, chunk.stop)
    return randomness.permute(ranks, chunk.total, config.seed(SHUFFLING))


def serialize_chunk(
    config: CreationConfig,
    chunk: Chunk,
    spans: np.ndarray,
    read: instances.Reader,
) -> WrittenChunk:
    """Masks and serializes instances.

    Args:
      chunk: Which instances these are.
      spans: instances.SPAN [n], in the order of their ranks.
      read: Reads their tokens; see `instances.gather`.
    """
    vocabulary = load_vocabulary(config)
    sequences = instances.gather(
        read,
        spans,
        config.max_seq_length,
        vocabulary.cls_id,
        vocabulary.sep_id,
    )
    masked = masking.mask(
        sequences["input_ids"],
        sequences["input_mask"],
        config,
        vocabulary.masking,
        randomness.keys(config.seed(MASKING), chunk_numbers(config, chunk)),
    )
    batch = {
        **sequences,
        "input_ids": masked.input_ids,
        "masked_lm_positions": masked.positions,
        "masked_lm_ids": masked.ids,
        "masked_lm_weights": masked.weights,
        "next_sentence_labels": spans["is_random_next"][:, np.newaxis],
    }
    counts = collections.Counter(
        random_next=int(spans["is_random_next"].sum()),
        instance_tokens=int(sequences["input_mask"].sum()),
        masked_as_mask=masked.num_mask,
        masked_as_random=masked.num_random,
        masked_as_kept=masked.num_kept,
    )
    # The bytes of a gzip file depend on the pieces, so their size is fixed.
    pieces = []
    for start in range(0, len(spans), DEFAULT_SIZES.instances):
        rows = slice(start, start + DEFAULT_SIZES.instances)
        piece = {name: values[rows] for name, values in batch.items()}
        data = records.frame(records.encode_batch(config.schema, piece))
        pieces.append(records.compress(data) if chunk.is_compressed else data)
    num_samples = NUM_SAMPLES if chunk.first == 0 else 0
    samples = {name: values[:num_samples] for name, values in batch.items()}
    return WrittenChunk(
        chunk.shard, len(spans), b"".join(pieces), counts, samples
    )


def create(
    config: CreationConfig,
    num_workers: int,
    sizes: PieceSizes = DEFAULT_SIZES,
) -> dict[str, Any]:
    """Writes the records and, next to the first output file, a manifest.

    The output files appear when all of them are complete. If anything fails
    before then, existing files of these names are unchanged. While the job
    runs, scratch files of about 0.7 bytes per byte of text and 25 bytes per
    instance are next to the first output or, if the output is remote, in the
    system's temporary folder.

    Args:
      num_workers: The number of processes. It does not affect the files.
      sizes: How the work is divided.

    Returns:
      The manifest: settings, counts and checksums.

    Raises:
      InputError: If the options, the vocabulary, the text or the output paths
        cannot be used.
    """
    inputs = config.input_paths()
    outputs = config.output_paths(inputs)
    vocabulary = vocabulary_entry(config)  # Fails early if it is unusable.
    counts: collections.Counter[str] = collections.Counter()
    with (
        _scratch_folder(outputs[0]) as folder,
        contextlib.ExitStack() as stack,
        processes.Pool(num_workers) as pool,
    ):
        # An ExitStack closes in reverse order. The manifest is opened first, so
        # that it is renamed last, after the files that it describes.
        manifest_file, *shard_files = [
            stack.enter_context(files.atomic_writer(path))
            for path in [files.manifest_path(outputs[0]), *outputs]
        ]
        text_bytes = _encode_all(config, folder, pool, inputs, counts)
        check_text(config, counts)
        counts["instances"] = _cut_all(config, folder, pool, sizes.sentences)
        plan = OutputPlan(tuple(outputs), counts["instances"], sizes.instances)
        shards = _write_all(config, folder, pool, plan, shard_files, counts)
        manifest = write_manifest(
            manifest_file, config, vocabulary, text_bytes, shards, counts
        )
    logging.info("Wrote %d total instances", counts["instances"])
    return manifest


@contextlib.contextmanager
def _scratch_folder(output: str) -> Iterator[str]:
    """Makes a temporary folder; removes leftovers of killed runs.

    It is next to the output, on the same disk, unless the output is remote.
    """
    parent = None if files.is_remote(output) else os.path.dirname(output) or "."
    prefix = files.temporary_prefix(os.path.basename(output))
    with files.input_errors("write", output):
        files.remove_leftovers(output)
        if parent:
            files.makedirs(parent)
        scratch = tempfile.TemporaryDirectory(prefix=prefix, dir=parent)
    with scratch as folder:
        yield folder


def _encode_all(
    config: CreationConfig,
    folder: str,
    pool: processes.Pool,
    paths: Sequence[str],
    counts: collections.Counter[str],
) -> dict[str, int]:
    """Runs stage 1; returns the bytes of text of each file."""
    log_paths("Reading from input files", paths)
    sizes = dict.fromkeys(paths, 0)

    def counted(blocks: Iterable[EncodedBlock]) -> Iterator[EncodedBlock]:
        for block in blocks:
            sizes[block.path] += block.num_bytes
            counts.update(token_counts(config, block))
            yield block

    blocks = processes.track(
        pool.run(
            text.blocks_of_files(paths), functools.partial(encode, config)
        ),
        lambda block: block.num_bytes,
        "Tokenizing",
        "bytes",
    )
    counts["documents"] = text.write_corpus(folder, counted(blocks))
    return sizes


def _cut_all(
    config: CreationConfig, folder: str, pool: processes.Pool, size: int
) -> int:
    """Runs stage 2; returns the number of instances."""
    bounds = instances.sections(Corpus.open(folder), size)
    function = functools.partial(cut, config, folder, size)
    total = 0
    with open(os.path.join(folder, SPANS), "wb") as file:
        for spans in processes.track(
            pool.run(bounds, function), len, "Cutting", "instances"
        ):
            file.write(spans)
            total += len(spans)
    return total


def _write_all(
    config: CreationConfig,
    folder: str,
    pool: processes.Pool,
    plan: OutputPlan,
    shard_files: Sequence[BufferedIOBase],
    counts: collections.Counter[str],
) -> list[dict[str, Any]]:
    """Runs stage 3; returns the manifest's entries of the output files."""
    log_paths("Writing to output files", plan.paths)
    checksums = [hashlib.sha256() for _ in plan.paths]
    sizes = [0 for _ in plan.paths]
    for chunk in processes.track(
        pool.run(plan.chunks(), functools.partial(write_chunk, config, folder)),
        lambda chunk: chunk.num_instances,
        "Writing",
        "instances",
        plan.total,
    ):
        shard_files[chunk.shard].write(chunk.data)
        checksums[chunk.shard].update(chunk.data)
        sizes[chunk.shard] += chunk.num_instances
        counts.update(chunk.counts)
        log_samples(config, chunk.samples)
    written = zip(plan.paths, sizes, checksums, strict=True)
    return [
        {"path": path, "records": size, "sha256": checksum.hexdigest()}
        for path, size, checksum in written
    ]


def log_paths(title: str, paths: Iterable[str]) -> None:
    logging.info("*** %s ***", title)
    for path in paths:
        logging.info("  %s", path)


def log_samples(
    config: CreationConfig, samples: Mapping[str, npt.ArrayLike]
) -> None:
    """Logs n instances as words; each of their features is [n, ...]."""
    to_words = load_vocabulary(config).tokenizer.convert_ids_to_tokens
    arrays = {name: np.asarray(values) for name, values in samples.items()}
    for row, ids in enumerate(arrays["input_ids"]):
        tokens = ids[arrays["input_mask"][row].astype(bool)]
        is_label = arrays["masked_lm_weights"][row] > 0
        labels = arrays["masked_lm_ids"][row][is_label]
        logging.info("*** Example ***")
        logging.info("tokens: %s", " ".join(to_words(tokens)))
        logging.info("masked_lm_labels: %s", " ".join(to_words(labels)))
        is_random = bool(arrays["next_sentence_labels"][row, 0])
        logging.info("is_random_next: %s", is_random)


def token_counts(
    config: CreationConfig, block: EncodedBlock
) -> collections.Counter[str]:
    """Returns statistics of a block, by their names in the manifest."""
    unk_id = load_vocabulary(config).unk_id
    beyond = block.lengths - config.max_text_tokens
    return collections.Counter(
        tokens=len(block.tokens),
        sentences=len(block.lengths),
        unknown_tokens=int((block.tokens == unk_id).sum()),
        sentences_longer_than_an_instance=int((beyond > 0).sum()),
        tokens_beyond_an_instance=int(beyond[beyond > 0].sum()),
    )


def check_text(config: CreationConfig, counts: Mapping[str, int]) -> None:
    """Raises InputError if a text cannot be used."""
    if not counts["sentences"]:
        raise InputError(
            f"`input_file={config.input_file}` has only blank lines. Pass "
            "files with text."
        )
    documents, sentences = counts["documents"], counts["sentences"]
    if config.next_sentence and (documents == 1 or documents == sentences):
        advice = f"End each sentence in {config.jsonl_field!r} with \\n"
        if config.input_format == "text":
            advice = "Put blank lines between documents, and only there,"
        raise InputError(
            "Next-sentence prediction needs several documents of several "
            f"sentences, one per line; found {documents:,} document(s), "
            f"{sentences:,} sentence(s). {advice} or pass "
            "`next_sentence=False`."
        )


def check_instances(config: CreationConfig, counts: Mapping[str, int]) -> None:
    """Warns of results that are possible but rarely intended."""
    unknown = counts["unknown_tokens"] / counts["tokens"]
    if unknown > _SUSPICIOUS_UNKNOWN:
        logging.warning(
            "%.0f %% of the tokens are [UNK]. Check that `vocab_file`, "
            "`do_lower_case` and `strip_accents` fit the text.",
            100 * unknown,
        )
    beyond = counts["tokens_beyond_an_instance"] / counts["tokens"]
    # A single segment continues in the next instance and loses no tokens.
    if config.next_sentence and beyond > _SUSPICIOUS_DROPPED:
        logging.warning(
            "%d of %d lines are longer than an instance; %.0f %% of all "
            "tokens do not fit and are dropped. Check that each line is one "
            "sentence.",
            counts["sentences_longer_than_an_instance"],
            counts["sentences"],
            100 * beyond,
        )


def vocabulary_entry(config: CreationConfig) -> dict[str, Any]:
    """Checks the vocabulary and returns its entry in the manifest."""
    size = len(load_vocabulary(config).tokenizer.vocab)
    with files.open_read(config.vocab_file) as file:
        checksum = hashlib.sha256(file.read()).hexdigest()
    return {"path": config.vocab_file, "size": size, "sha256": checksum}


def write_manifest(
    file: BufferedIOBase,
    config: CreationConfig,
    vocabulary: dict[str, Any],
    text_bytes: Mapping[str, int],
    shards: Sequence[dict[str, Any]],
    counts: Mapping[str, int],
) -> dict[str, Any]:
    """Checks the counts; writes and returns the manifest.

    Args:
      vocabulary: The `vocabulary_entry`.
      text_bytes: The bytes of text of each input file.
      shards: The path, records and sha256 of each output file.
      counts: Statistics of text and instances, by name.
    """
    check_instances(config, counts)
    manifest = {
        "version": __version__,
        "settings": config.settings(),
        "vocabulary": vocabulary,
        "inputs": [
            {"path": path, "bytes": size} for path, size in text_bytes.items()
        ],
        "outputs": list(shards),
        "counts": {name: counts[name] for name in sorted(counts)},
    }
    file.write(json.dumps(manifest, indent=2).encode() + b"\n")
    return manifest


def casing_of(outputs: Iterable[str]) -> dict[str, bool | None]:
    """Reads from manifests how the text of record files was normalized.

    Returns:
      `do_lower_case` and `strip_accents` if there are manifests and all agree;
      otherwise an empty dict. Only the first output of a job has a manifest.
    """
    names = "do_lower_case", "strip_accents"
    casings = [
        {name: settings.get(name) for name in names}
        for settings in map(_manifest_settings, outputs)
        if settings
    ]
    agree = casings and casings.count(casings[0]) == len(casings)
    return casings[0] if agree else {}


def require_next_sentence(outputs: Iterable[str]) -> None:
    """Raises InputError if a manifest says its records have no next sentences.

    All labels of such records are equal, which a model would learn at once.
    """
    for path in outputs:
        if _manifest_settings(path).get("next_sentence") is False:
            raise InputError(
                f"{path} was made with `next_sentence=False`. Pass "
                "`next_sentence=False` here too."
            )


def _manifest_settings(output: str) -> dict[str, Any]:
    """Returns the settings in the manifest of a file; {} without one."""
    path = files.manifest_path(output)
    manifest = files.read_json(path) if files.exists(path) else {}
    return manifest.get("settings", {})
