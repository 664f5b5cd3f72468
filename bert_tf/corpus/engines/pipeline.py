"""Data creation on many machines: the order of the stages, and the files.

`assemble` connects the functions of `cluster` once for all engines. `create`
does the rest in the process that starts the job: it checks the options, makes
temporary files and renames them at the end.

`creation`, which works on one machine, has its own stages: it keeps the text in
local files and reads the random segments from there, so it never has to send
them from one worker to another.
"""

import collections
import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import secrets
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

from absl import logging

from bert_tf.base import files
from bert_tf.corpus import cluster, creation
from bert_tf.corpus.cluster import (
    InstanceTable,
    ReadingTask,
    SectionTable,
    TaskReport,
    TextSection,
)
from bert_tf.corpus.creation import WrittenChunk
from bert_tf.corpus.settings import CLUSTER_SIZES, CreationConfig, PieceSizes
from bert_tf.errors import InputError

# The file in which the pipeline leaves its results.
_RESULTS = "results.json"
# The file by which workers know that they share the folder.
_BEGUN = "begun"

# Items that are spread over the workers, and an object that all workers have.
Collection = Any
Table = Any


class Engine(Protocol):
    """What runs the stages.

    The functions run on workers, perhaps more than once for the same item.
    They get an item of a collection, then `arguments`: tables and other
    objects. The labels name the stages in the engine's log.
    """

    def spread(self, label: str, items: Sequence[Any]) -> Collection:
        """Makes a collection of a few thousand small items."""

    def flat_map(
        self,
        label: str,
        function: Callable[..., Iterable[Any]],
        collection: Collection,
        *arguments: Any,
    ) -> Collection:
        """Calls a function with each item; joins the items it yields."""

    def keep(self, label: str, collection: Collection) -> Collection:
        """Stores a collection that several stages use."""

    def union(self, label: str, *collections: Collection) -> Collection:
        """Joins collections."""

    def group(self, label: str, *collections: Collection) -> Collection:
        """Makes (key, (values, ...)) from pairs (key, value).

        Each collection gives one iterable of values; the first is never empty.
        """

    def once(
        self, label: str, function: Callable[..., Any], *inputs: Any
    ) -> Table:
        """Calls a function once with whole collections and with tables."""

    def run(self) -> None:
        """Returns when all stages have run; may raise InputError."""


@dataclasses.dataclass(frozen=True)
class Job:
    """The arguments of all stages."""

    config: CreationConfig
    sizes: PieceSizes
    tasks: tuple[ReadingTask, ...]
    outputs: tuple[str, ...]
    folders: tuple[str, ...]  # For each output, next to it.
    folder: str  # For all other files, until the job ends.


def create(
    config: CreationConfig,
    opened: contextlib.AbstractContextManager[Engine],
    sizes: PieceSizes = CLUSTER_SIZES,
) -> dict[str, Any]:
    """Writes the same files as `creation.create`.

    The output files appear when all of them are complete. Meanwhile a folder
    next to the first output file holds all records in chunks.

    Args:
      config: The options. All workers must be able to access the files.
      opened: The engine, which is started after the options were checked and
        stopped before the output files get their names.
      sizes: How the work is divided.

    Returns:
      The manifest: settings, counts and checksums.

    Raises:
      InputError: If the engine cannot be started; or as in `creation.create`.
    """
    inputs = config.input_paths()
    outputs = config.output_paths(inputs)
    vocabulary = creation.vocabulary_entry(config)  # Fails early.
    manifest_path = files.manifest_path(outputs[0])
    with (
        _shared_folder(outputs[0]) as folder,
        # The first writer is the last to rename its file.
        files.atomic_writer(manifest_path) as manifest_file,
        contextlib.ExitStack() as stack,
    ):
        folders = tuple(
            stack.enter_context(_shared_folder(files.follow_links(path)))
            for path in outputs
        )
        tasks = tuple(cluster.plan_tasks(inputs, sizes.text_bytes))
        job = Job(config, sizes, tasks, tuple(outputs), folders, folder)
        creation.log_paths("Reading from input files", inputs)
        with opened as engine:
            assemble(engine, job)
            engine.run()
        results = files.read_json(os.path.join(folder, _RESULTS))
        creation.log_samples(config, results["samples"])
        creation.log_paths("Wrote output files", outputs)
        manifest = creation.write_manifest(
            manifest_file,
            config,
            vocabulary,
            {path: results["text_bytes"][path] for path in inputs},
            results["shards"],
            results["counts"],
        )
        for path, complete in zip(outputs, results["files"], strict=True):
            with files.input_errors("write", path):
                files.rename(complete, files.follow_links(path))
    logging.info("Wrote %d total instances", manifest["counts"]["instances"])
    return manifest


@contextlib.contextmanager
def _shared_folder(output: str) -> Iterator[str]:
    """Makes a folder next to an output file, for files of workers.

    An output that cannot be written fails here, before hours of work.
    """
    folder = files.temporary_prefix(output) + secrets.token_hex(4)
    with files.input_errors("write", output):
        files.remove_leftovers(output)
        files.makedirs(folder)
    try:
        files.write_text(os.path.join(folder, _BEGUN), "")
        yield folder
    finally:
        try:
            files.remove_tree(folder)
        except OSError as error:
            # A worker that was stopped may still have written a file.
            logging.warning("Remove the folder %s: %s.", folder, error)


def assemble(engine: Engine, job: Job) -> None:
    """Connects the functions of `cluster`; the last one writes the results."""
    tasks = engine.spread("Tasks", job.tasks)
    contents = engine.keep(
        "Keep the text",
        engine.flat_map(
            "Read",
            read_task,
            tasks,
            job.config,
            job.sizes.sentences,
            job.folder,
        ),
    )
    sections = engine.flat_map("Sections", _sections, contents)
    entries = engine.flat_map("Entries", called, sections, cluster.entry_of)
    reports = engine.flat_map("Reports", _reports, contents)
    number = functools.partial(SectionTable.of, job.config)
    table = engine.once("Number the documents", number, entries, reports)
    complete, counts = _cut(engine, job, sections, table)
    count = functools.partial(
        InstanceTable.of, job.outputs, job.sizes.instances
    )
    instances = engine.once("Count the instances", count, counts, table)
    shards = _write(engine, job, complete, instances)
    finish = functools.partial(_write_results, job)
    engine.once("Results", finish, table, reports, shards)


def _cut(
    engine: Engine, job: Job, sections: Collection, table: Table
) -> tuple[Collection, Collection]:
    """Returns all instances, and the number of instances of each section."""
    config, size = job.config, job.sizes.sentences
    # An engine may cut three times: that is cheaper than to store instances.
    cut = engine.flat_map(
        "Cut", called, sections, cluster.cut_section, config, size, table
    )
    counts = engine.flat_map("Counts", _counts, cut)
    complete = engine.flat_map("Complete", _complete, cut)
    if not config.next_sentence:
        return complete, counts
    grouped = engine.group(
        "Group by section",
        engine.flat_map("Replicate", cluster.replicate, sections, table),
        engine.flat_map("Requests", _requests, cut),
    )
    pairs = engine.flat_map(
        "Complete the pairs",
        cluster.complete_pairs,
        grouped,
        config,
        size,
        table,
    )
    return engine.union("All instances", complete, pairs), counts


def _write(
    engine: Engine, job: Job, instances: Collection, table: Table
) -> Collection:
    """Returns the shards, whose files are complete."""
    assigned = engine.flat_map(
        "Assign chunks", cluster.assign_chunks, instances, job.config, table
    )
    written = engine.flat_map(
        "Write the chunks",
        called,
        engine.group("Group by chunk", assigned),
        cluster.write_chunk,
        job.config,
        job.folder,
        table,
    )
    by_file = engine.group("Group by file", written)
    return engine.flat_map("Join the chunks", called, by_file, join_chunks, job)


# Beam checks the types of the stages by these annotations.


def called(
    item: Any, function: Callable[..., Any], *arguments: Any
) -> list[Any]:
    """Calls a function that returns one item."""
    return [function(item, *arguments)]


def read_task(
    task: ReadingTask, config: CreationConfig, size: int, folder: str
) -> Iterator[TextSection | TaskReport]:
    """Reads a task, unless this worker lacks a file."""
    try:
        creation.load_vocabulary(config)
        if not files.exists(os.path.join(folder, _BEGUN)):
            raise InputError(
                f"there is no folder {folder}. Write to a folder that all "
                "workers share."
            )
    except InputError as error:
        raise InputError(
            f"On the worker {socket.gethostname()}: {error}"
        ) from None
    yield from cluster.read_task(task, config, size)


def _sections(item: TextSection | TaskReport) -> list[TextSection]:
    return [item] if isinstance(item, TextSection) else []


def _reports(item: TextSection | TaskReport) -> list[TaskReport]:
    return [item] if isinstance(item, TaskReport) else []


def _counts(cut: cluster.CutSection) -> list[tuple[int, int]]:
    return [(cut.index, cut.count)]


def _complete(cut: cluster.CutSection) -> list[cluster.Batch]:
    return [cut.complete]


def _requests(
    cut: cluster.CutSection,
) -> list[tuple[cluster.Address, cluster.Batch]]:
    return cut.requests


@dataclasses.dataclass(frozen=True)
class Shard:
    """An output file that is complete except for its name."""

    number: int
    entry: dict[str, Any]  # Its entry in the manifest.
    path: str  # Its temporary name.
    counts: collections.Counter[str]
    samples: dict[str, list[Any]]  # See `creation.WrittenChunk`.


def join_chunks(
    written: tuple[int, tuple[Iterable[tuple[int, WrittenChunk]]]], job: Job
) -> Shard:
    """Concatenates the chunks of an output file."""
    number, (pairs,) = written
    chunks = dict(pairs)
    checksum = hashlib.sha256()
    counts: collections.Counter[str] = collections.Counter()
    path = cluster.attempt_path(os.path.join(job.folders[number], "complete"))
    with files.atomic_writer(path) as file:
        for first in sorted(chunks):
            chunk_path = cluster.chunk_path(job.folder, first)
            with files.open_read(chunk_path) as chunk_file:
                data = chunk_file.read()
            file.write(data)
            checksum.update(data)
            counts.update(chunks[first].counts)
    entry = {
        "path": job.outputs[number],
        "records": sum(chunk.num_instances for chunk in chunks.values()),
        "sha256": checksum.hexdigest(),
    }
    first_samples = chunks[min(chunks)].samples
    samples = {name: v.tolist() for name, v in first_samples.items()}
    return Shard(number, entry, path, counts, samples)


def _write_results(
    job: Job,
    table: SectionTable,
    reports: Iterable[TaskReport],
    shards: Iterable[Shard],
) -> None:
    """Writes what `create` needs for the manifest."""
    text_bytes: collections.Counter[str] = collections.Counter()
    for report in reports:
        text_bytes.update(report.text_bytes)
    ordered = sorted(shards, key=lambda shard: shard.number)
    counts = collections.Counter(table.counts)
    for shard in ordered:
        counts.update(shard.counts)
    counts["instances"] = sum(shard.entry["records"] for shard in ordered)
    results = {
        "text_bytes": text_bytes,
        "counts": counts,
        "shards": [shard.entry for shard in ordered],
        "files": [shard.path for shard in ordered],
        "samples": ordered[0].samples,
    }
    path = os.path.join(job.folder, _RESULTS)
    files.write_text(path, json.dumps(results))
