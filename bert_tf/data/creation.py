"""Text to pre-training records: the whole job of create_pretraining_data.py.

1. The text is tokenized once, into scratch files.
2. Instances are cut from it `dupe_factor` times, as pairs of slices.
3. They are shuffled as a whole, masked, serialized and written.

Each stage deals its pieces of work out (`stages`, `jobs`) and appends the
results in order. How a stage falls into pieces depends on the settings and the
text alone, so any number of workers gives the same bytes; and no stage holds
more than a few pieces, so the memory used does not grow with the text.
"""

import collections
import contextlib
import functools
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from io import BufferedIOBase
from typing import Any

from absl import logging

from bert_tf import files
from bert_tf.data import documents, instances, jobs, progress, stages
from bert_tf.data.creation_config import CreationConfig
from bert_tf.errors import InputError
from bert_tf.text.wordpiece import FullTokenizer
from bert_tf.version import __version__

# Sizes of the pieces of work. Like the seed, they decide which random numbers
# fall where: a change gives other records.
SENTENCES_PER_PIECE = 1 << 14
INSTANCES_PER_PIECE = 1 << 11

SUSPICIOUS_UNKNOWN_SHARE = 0.1
SUSPICIOUS_RANDOM_SHARE = 0.75
SUSPICIOUS_BEYOND_SHARE = 0.05


def create(config: CreationConfig, num_workers: int) -> dict[str, Any]:
    """Writes the records and, beside the first output, a manifest.

    The outputs appear when all of them are complete; if anything fails before,
    files of these names that were there stay as they are. While at work, the
    folder of the first output holds scratch files of some 0.7 bytes for each
    byte of text and 25 for each instance.

    Args:
      config: What to do.
      num_workers: Processes to use. It does not show in the result.

    Returns:
      The manifest: settings, counts, checksums.

    Raises:
      InputError: The settings, the vocabulary, the text or the places to write
        to cannot be used.
    """
    inputs = config.input_paths()
    outputs = config.output_paths(inputs)
    vocabulary = _vocabulary_entry(config)  # A bad one shows at once.
    manifest_path = files.manifest_path(outputs[0])
    with (
        _scratch_folder(outputs[0]) as folder,
        # The manifest first, which makes it the last to be renamed.
        _writers([manifest_path, *outputs]) as (manifest_file, *shard_files),
        jobs.Pool(num_workers) as pool,
    ):
        job = _Job(config, folder, pool)
        sizes = job.tokenize(inputs)
        job.check_text()
        job.cut()
        shards = list(map(_Shard, outputs, shard_files))
        job.write(shards)
        job.check_instances()
        manifest = {
            "version": __version__,
            "settings": config.settings(),
            "vocabulary": vocabulary,
            "inputs": [{"path": path, "bytes": sizes[path]} for path in inputs],
            "outputs": [shard.entry() for shard in shards],
            "counts": job.counts,
        }
        manifest_file.write(json.dumps(manifest, indent=2).encode() + b"\n")
    logging.info("Wrote %d total instances", job.counts["instances"])
    return manifest


def casing_of(outputs: Iterable[str]) -> dict[str, bool | None]:
    """Tells how the text in record files was normalized, by their manifests.

    Args:
      outputs: Record files; only the first of a job has a manifest beside it.

    Returns:
      `do_lower_case` and `strip_accents`, if there is a manifest and if all
      manifests say the same; else nothing.
    """
    found = []
    for path in map(files.manifest_path, outputs):
        if files.exists(path):
            settings = files.read_json(path).get("settings", {})
            names = ("do_lower_case", "strip_accents")
            found.append({name: settings.get(name) for name in names})
    agree = found and all(casing == found[0] for casing in found)
    return found[0] if agree else {}


def _vocabulary_entry(config: CreationConfig) -> dict[str, Any]:
    size = len(stages.tools(config).tokenizer.vocab)
    with files.open_read(config.vocab_file) as file:
        checksum = hashlib.sha256(file.read()).hexdigest()
    return {"path": config.vocab_file, "size": size, "sha256": checksum}


@contextlib.contextmanager
def _scratch_folder(output: str) -> Iterator[str]:
    """A folder for what is needed on the way, gone afterwards.

    It is beside the output, where there has to be room, unless that is remote.
    Those of earlier runs that were killed are removed.
    """
    beside = None if files.is_remote(output) else os.path.dirname(output) or "."
    prefix = files.temporary_prefix(os.path.basename(output))
    files.remove_leftovers(output)
    try:
        if beside:
            files.makedirs(beside)
        scratch = tempfile.TemporaryDirectory(prefix=prefix, dir=beside)
    except OSError as error:
        raise InputError(
            f"Cannot write to the folder of {output}: {error.strerror}."
        ) from error
    with scratch as folder:
        yield folder


@contextlib.contextmanager
def _writers(paths: Sequence[str]) -> Iterator[list[BufferedIOBase]]:
    """Files that replace those at `paths` if the block ends well."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(files.atomic_writer(path)) for path in paths]


class _Shard:
    """One output file: where it is, and what has been written to it."""

    def __init__(self, path: str, file: BufferedIOBase) -> None:
        self.path = path
        self._file = file
        self._checksum = hashlib.sha256()
        self._num_records = 0

    def append(self, part: stages.Part) -> None:
        self._file.write(part.data)
        self._checksum.update(part.data)
        self._num_records += part.num_instances

    def entry(self) -> dict[str, Any]:
        """What the manifest says of it."""
        return {
            "path": self.path,
            "records": self._num_records,
            "sha256": self._checksum.hexdigest(),
        }


class _Job:
    """The stages, to be run one after the other.

    Attributes:
      counts: What has been counted so far, for the manifest.
    """

    def __init__(
        self, config: CreationConfig, folder: str, pool: jobs.Pool
    ) -> None:
        self.counts: collections.Counter[str] = collections.Counter()
        self._config = config
        self._folder = folder
        self._pool = pool

    def _run(
        self, stage: Callable[..., Any], pieces: Iterable[Any]
    ) -> Iterator[Any]:
        function = functools.partial(stage, self._config, self._folder)
        return self._pool.run(pieces, function)

    def tokenize(self, paths: Sequence[str]) -> dict[str, int]:
        """Stage 1: text to a Corpus; returns the bytes of text of each file."""
        logging.info("*** Reading from input files ***")
        for path in paths:
            logging.info("  %s", path)
        sizes = dict.fromkeys(paths, 0)
        blocks = progress.track(
            self._run(stages.encode, documents.text_blocks(paths)),
            lambda block: block.num_bytes,
            "Tokenizing",
            "bytes",
        )
        with documents.CorpusWriter(self._folder) as writer:
            for block in blocks:
                writer.append(block)
                sizes[block.path] += block.num_bytes
                self._count_tokens(block)
        self.counts.update(
            documents=writer.num_documents,
            sentences=writer.num_sentences,
            tokens=writer.num_tokens,
        )
        return sizes

    def _count_tokens(self, block: documents.EncodedBlock) -> None:
        unk_id = stages.tools(self._config).unk_id
        beyond = block.lengths - self._config.instance_rule.room
        self.counts.update(
            unknown_tokens=int((block.tokens == unk_id).sum()),
            sentences_longer_than_an_instance=int((beyond > 0).sum()),
            tokens_beyond_an_instance=int(beyond[beyond > 0].sum()),
        )

    def check_text(self) -> None:
        """Raises InputError for a text of which nothing can be made."""
        counts = self.counts
        if not counts["sentences"]:
            raise InputError(
                "Expected lines of text. Received: nothing but blank lines in "
                f"--input_file={self._config.input_file}"
            )
        if not self._config.next_sentence:
            return
        if counts["documents"] == 1:
            raise InputError(
                "Expected two documents or more: next-sentence prediction "
                "takes random sentences from another one. Received: 1 "
                "document; put blank lines between documents, or pass "
                "--nonext_sentence"
            )
        if counts["sentences"] == counts["documents"]:
            raise InputError(
                "Expected documents of several sentences, one a line: a lone "
                "sentence has no next one. Received: "
                f"{counts['documents']:,} documents of 1 sentence; leave blank "
                "lines between documents only, or pass --nonext_sentence"
            )

    def cut(self) -> None:
        """Stage 2: a Corpus to the spans of instances, not shuffled yet."""
        corpus = documents.Corpus.open(self._folder)
        sections = instances.sections(corpus, SENTENCES_PER_PIECE)
        pieces = progress.track(
            self._run(stages.cut, sections),
            len,
            "Cutting",
            "instances",
        )
        with open(os.path.join(self._folder, stages.SPANS), "wb") as file:
            for spans in pieces:
                file.write(spans)
                self.counts["instances"] += len(spans)

    def write(self, shards: Sequence["_Shard"]) -> None:
        """Stage 3: spans to records, masked and in random order."""
        logging.info("*** Writing to output files ***")
        for shard in shards:
            logging.info("  %s", shard.path)
        total = self.counts["instances"]
        plans = _part_plans([shard.path for shard in shards], total)
        parts = progress.track(
            self._run(stages.make_part, plans),
            lambda part: part.num_instances,
            "Writing",
            "instances",
            total,
        )
        for part in parts:
            shards[part.shard].append(part)
            self.counts.update(part.counts)
            _log_samples(part, stages.tools(self._config).tokenizer)

    def check_instances(self) -> None:
        """Warns of what is possible, but seldom meant."""
        counts = self.counts
        unknown = counts["unknown_tokens"] / counts["tokens"]
        if unknown > SUSPICIOUS_UNKNOWN_SHARE:
            logging.warning(
                "%.0f %% of the tokens are [UNK]: do --vocab_file and "
                "--do_lower_case suit the text?",
                100 * unknown,
            )
        beyond = counts["tokens_beyond_an_instance"] / counts["tokens"]
        # A single segment goes on in the next instance and loses nothing.
        if self._config.next_sentence and beyond > SUSPICIOUS_BEYOND_SHARE:
            logging.warning(
                "%d of %d lines are longer than an instance; what does not fit "
                "is dropped, %.0f %% of all tokens: is there one sentence a "
                "line?",
                counts["sentences_longer_than_an_instance"],
                counts["sentences"],
                100 * beyond,
            )
        random_next = counts["random_next"] / counts["instances"]
        if random_next > SUSPICIOUS_RANDOM_SHARE:
            logging.warning(
                "%.0f %% of the instances have a random next sentence: there "
                "are many documents of one sentence, or sentences longer than "
                "--max_seq_length",
                100 * random_next,
            )


def _part_plans(paths: Sequence[str], total: int) -> Iterator[stages.PartPlan]:
    """Deals `total` instances out to files, as evenly as can be.

    Raises:
      InputError: There are more files than instances.
    """
    if total < len(paths):
        raise InputError(
            "Expected as many instances as output files at least. Received: "
            f"{total} instances for {len(paths)} files; name fewer"
        )
    for shard, path in enumerate(paths):
        start = total * shard // len(paths)
        end = total * (shard + 1) // len(paths)
        for first in range(start, end, INSTANCES_PER_PIECE):
            stop = min(first + INSTANCES_PER_PIECE, end)
            yield stages.PartPlan(
                shard, first, stop, total, path.endswith(".gz")
            )


def _log_samples(part: stages.Part, tokenizer: FullTokenizer) -> None:
    """Shows the first instances of all in words."""
    for row in range(len(part.samples["input_ids"])):
        sample = {name: values[row] for name, values in part.samples.items()}
        is_token = sample["input_mask"].astype(bool)
        is_masked = sample["masked_lm_weights"] > 0
        to_words = tokenizer.convert_ids_to_tokens
        logging.info("*** Example ***")
        logging.info(
            "tokens: %s", " ".join(to_words(sample["input_ids"][is_token]))
        )
        logging.info(
            "masked_lm_labels: %s",
            " ".join(to_words(sample["masked_lm_ids"][is_masked])),
        )
        logging.info(
            "is_random_next: %s", bool(sample["next_sentence_labels"][0])
        )
