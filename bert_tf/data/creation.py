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
from bert_tf.data import creation_report as report
from bert_tf.data import (
    documents,
    instances,
    jobs,
    progress,
    stages,
    text_files,
)
from bert_tf.data.creation_config import (
    DEFAULT_SIZES,
    CreationConfig,
    PieceSizes,
)
from bert_tf.data.dealing import Dealing
from bert_tf.errors import InputError


def create(
    config: CreationConfig,
    num_workers: int,
    sizes: PieceSizes = DEFAULT_SIZES,
) -> dict[str, Any]:
    """Writes the records and, beside the first output, a manifest.

    The outputs appear when all of them are complete; if anything fails before,
    files of these names that were there stay as they are. While at work, the
    folder of the first output holds scratch files of some 0.7 bytes for each
    byte of text and 25 for each instance.

    Args:
      config: What to do.
      num_workers: Processes to use. It does not show in the result.
      sizes: Of the pieces of work.

    Returns:
      The manifest: settings, counts, checksums.

    Raises:
      InputError: The settings, the vocabulary, the text or the places to write
        to cannot be used.
    """
    inputs = config.input_paths()
    outputs = config.output_paths(inputs)
    vocabulary = report.vocabulary_entry(config)  # A bad one shows at once.
    manifest_path = files.manifest_path(outputs[0])
    with (
        _scratch_folder(outputs[0]) as folder,
        # The manifest first, which makes it the last to be renamed.
        _writers([manifest_path, *outputs]) as (manifest_file, *shard_files),
        jobs.Pool(num_workers) as pool,
    ):
        job = _Job(config, folder, pool, sizes)
        text_bytes = job.tokenize(inputs)
        report.check_text(config, job.counts)
        job.cut()
        shards = list(map(_Shard, outputs, shard_files))
        job.write(shards)
        report.check_instances(config, job.counts)
        entries = [shard.entry() for shard in shards]
        manifest = report.manifest(
            config, vocabulary, text_bytes, entries, job.counts
        )
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
    found = list(_settings_of(outputs, "do_lower_case", "strip_accents"))
    agree = found and all(casing == found[0] for casing in found)
    return found[0] if agree else {}


def require_next_sentence(outputs: Iterable[str]) -> None:
    """Makes sure that records have next sentences, by their manifests.

    Without them every label is the same, which a model learns at once.

    Raises:
      InputError: A manifest says that they were made without.
    """
    for path in outputs:
        if {"next_sentence": False} in _settings_of([path], "next_sentence"):
            raise InputError(
                f"expected --nonext_sentence, as {path} was made. Received: "
                "--next_sentence"
            )


def _settings_of(outputs: Iterable[str], *names: str) -> Iterator[dict]:
    """Some of the settings of each manifest that is there."""
    for path in map(files.manifest_path, outputs):
        if files.exists(path):
            settings = files.read_json(path).get("settings", {})
            yield {name: settings.get(name) for name in names}


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
        return report.shard_entry(
            self.path, self._num_records, self._checksum.hexdigest()
        )


class _Job:
    """The stages, to be run one after the other.

    Attributes:
      counts: What has been counted so far, for the manifest.
    """

    def __init__(
        self,
        config: CreationConfig,
        folder: str,
        pool: jobs.Pool,
        sizes: PieceSizes,
    ) -> None:
        self.counts: collections.Counter[str] = collections.Counter()
        self._config = config
        self._folder = folder
        self._pool = pool
        self._sizes = sizes

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
            self._run(stages.encode, text_files.blocks_of_files(paths)),
            lambda block: block.num_bytes,
            "Tokenizing",
            "bytes",
        )
        with documents.CorpusWriter(self._folder) as writer:
            for block in blocks:
                writer.append(block)
                sizes[block.path] += block.num_bytes
                self.counts.update(report.token_counts(self._config, block))
        self.counts["documents"] = writer.num_documents
        return sizes

    def cut(self) -> None:
        """Stage 2: a Corpus to the spans of instances, not shuffled yet."""
        corpus = documents.Corpus.open(self._folder)
        size = self._sizes.sentences
        plans = (
            stages.CutPlan(first, stop, size)
            for first, stop in instances.sections(corpus, size)
        )
        pieces = progress.track(
            self._run(stages.cut, plans),
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
        paths = tuple(shard.path for shard in shards)
        dealing = Dealing(paths, total, self._sizes.instances)
        parts = progress.track(
            self._run(stages.make_part, dealing.plans()),
            lambda part: part.num_instances,
            "Writing",
            "instances",
            total,
        )
        for part in parts:
            shards[part.shard].append(part)
            self.counts.update(part.counts)
            report.log_samples(self._config, part.samples)
