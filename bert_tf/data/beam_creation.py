"""Text to pre-training records on a cluster, as an Apache Beam pipeline.

The records are those of `creation`, byte for byte: both call the same
functions, and what is drawn for an instance is named by its place in the text
(see `draws`), not by who draws it. What differs is who knows what.

1. *Read.* Files are divided into ranges of bytes; each document is tokenized by
   who has the range in which it begins (`text_ranges`). The text becomes
   sections of about 16,000 sentences.
2. *Number.* A `Directory` of some 100 bytes for a section, which all workers
   get, tells how many documents there are and where each of them is.
3. *Cut.* A section's pairs are drafted. A random next segment is drawn as in
   `creation`, from the whole text: a document other than the pair's own, each
   with the same chance, and a point in it. Half of the pairs thus lack a B that
   somebody else has. They travel there, with their A: they are grouped by the
   section that has the B, which completes them. No worker needs more than one
   section and a few questions to it. Where documents differ in length, some
   sections are asked more often than others; these have copies, so that none
   gets more questions than the average section (`Directory.copies`).
4. *Shuffle.* With the number of all instances every worker can tell the rank
   of each in the shuffle of all, and so the part of an output file that it
   belongs to. They are grouped by part: 2,048 at a time are masked and written
   to a file of their own in a folder beside the first output.
5. *Join.* The parts of each output are set end to end by one worker, which
   holds one part at a time. Whoever has started the job renames the outputs.

What grows with the text is in the runner's shuffle, in groups that do not grow;
and, at some 100 bytes for each section or part, in the tables of 2, 4 and 5.
Work that is done twice, after a failure or on suspicion, gives the same bytes
in the same places.

What the user has to mend in the text travels as data to the end: raised by a
worker, it would have the cluster try four times and bury the message.
"""

import collections
import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from absl import logging

from bert_tf import files
from bert_tf.data import beam_options, cluster_stages, directory, text_ranges
from bert_tf.data import creation_report as report
from bert_tf.data.cluster_stages import CutSection, Totals, WrittenPart
from bert_tf.data.creation_config import (
    DEFAULT_SIZES,
    CreationConfig,
    PieceSizes,
)
from bert_tf.data.directory import Directory
from bert_tf.data.text_ranges import ReadingTask, TaskReport, TextSection
from bert_tf.errors import InputError

if TYPE_CHECKING:
    import apache_beam as beam

# Ranges of text at most: all of them are named in the job's description, for
# which Dataflow has a limit.
MAX_TASKS = 10_000

_RESULTS = "results.json"


@dataclasses.dataclass(frozen=True)
class _Job:
    """What to do and where.

    Attributes:
      config: What to do.
      sizes: Of the pieces of work.
      tasks: What to read.
      outputs: The files that are asked for.
      asides: Where each is to be written.
      folder: A folder for what is needed on the way.
    """

    config: CreationConfig
    sizes: PieceSizes
    tasks: tuple[ReadingTask, ...]
    outputs: tuple[str, ...]
    asides: tuple[str, ...]
    folder: str


def create(
    config: CreationConfig, options: str, sizes: PieceSizes = DEFAULT_SIZES
) -> dict[str, Any]:
    """Writes the records and, beside the first output, a manifest.

    The outputs appear when all of them are complete; see `creation.create`,
    which writes the same. While at work, the folder of the first output holds
    a folder with all records in parts.

    Args:
      config: What to do. Its files are where all workers can reach them.
      options: Beam's, as on a command line: "--runner=FlinkRunner ...".
      sizes: Of the pieces of work.

    Returns:
      The manifest: settings, counts, checksums.

    Raises:
      InputError: Beam is not installed; or the options, the settings, the
        vocabulary, the text or the places to write to cannot be used.
    """
    pipeline = beam_options.new_pipeline(options)
    inputs = config.input_paths()
    outputs = config.output_paths(inputs)
    vocabulary = report.vocabulary_entry(config)  # A bad one shows at once.
    manifest_path = files.manifest_path(outputs[0])
    with (
        _shared_folder(outputs[0]) as folder,
        # The manifest first, which makes it the last to be renamed.
        files.atomic_writer(manifest_path) as manifest_file,
        contextlib.ExitStack() as stack,
    ):
        asides = tuple(stack.enter_context(_aside(path)) for path in outputs)
        tasks = tuple(plan(inputs, sizes.text_bytes))
        job = _Job(config, sizes, tasks, tuple(outputs), asides, folder)
        _log_paths("Reading from input files", inputs)
        assemble(pipeline, job)
        beam_options.run(pipeline)
        results = files.read_json(os.path.join(folder, _RESULTS))
        if results["mistake"]:
            raise InputError(results["mistake"])
        counts = results["counts"]
        report.check_instances(config, counts)
        report.log_samples(config, results["samples"])
        _log_paths("Wrote output files", outputs)
        manifest = report.manifest(
            config,
            vocabulary,
            {path: results["text_bytes"][path] for path in inputs},
            results["shards"],
            counts,
        )
        manifest_file.write(json.dumps(manifest, indent=2).encode() + b"\n")
    logging.info("Wrote %d total instances", counts["instances"])
    return manifest


def plan(paths: list[str], text_bytes: int) -> Iterator[ReadingTask]:
    total = sum(text_ranges.size_of(path) for path in paths)
    return text_ranges.plan_tasks(paths, max(text_bytes, total // MAX_TASKS))


def _log_paths(title: str, paths: Iterable[str]) -> None:
    logging.info("*** %s ***", title)
    for path in paths:
        logging.info("  %s", path)


@contextlib.contextmanager
def _shared_folder(output: str) -> Iterator[str]:
    """A folder beside an output for what workers leave each other."""
    folder = files.temporary_prefix(output) + secrets.token_hex(4)
    with files.blaming("write", output):
        files.remove_leftovers(output)
        files.makedirs(folder)
    try:
        yield folder
    finally:
        files.remove_tree(folder)


@contextlib.contextmanager
def _aside(path: str) -> Iterator[str]:
    """Where somebody else writes a file that replaces `path` if all is well."""
    path = files.follow_links(path)
    files.remove_leftovers(path)
    temporary = files.temporary_prefix(path) + secrets.token_hex(4)
    with files.blaming("write", path):
        # Hours of work are not for a place that nobody can write to.
        files.makedirs(os.path.dirname(path) or ".")
    try:
        files.write_text(temporary, "")
        yield temporary
        with files.blaming("write", path):
            files.rename(temporary, path)
    except BaseException:
        if files.exists(temporary):
            files.remove(temporary)
        raise


def assemble(pipeline: "beam.Pipeline", job: _Job) -> None:
    """Adds the work to a pipeline.

    It ends with a file of results in the job's folder.
    """
    import apache_beam as beam
    from apache_beam.pvalue import AsIter, AsSingleton

    def once(label: str, function: Any, *inputs: Any) -> "beam.PCollection":
        """What one worker makes of what all have found."""
        start = pipeline | f"{label}: begin" >> beam.Create([None])
        return start | label >> beam.Map(_ignoring_first, function, *inputs)

    read = _read(pipeline, job)
    sections = read | "Sections" >> beam.FlatMap(_sections)
    entries = AsIter(sections | "Entries" >> beam.Map(directory.entry_of))
    reports = AsIter(read | "Reports" >> beam.FlatMap(_reports))
    number = functools.partial(Directory.of, job.config)
    table = AsSingleton(once("Number the documents", number, entries, reports))
    cut = sections | "Cut" >> beam.FlatMap(
        cluster_stages.cut, job.config, job.sizes.sentences, table
    )
    counts = AsIter(cut | "Counts" >> beam.Map(_count))
    count = functools.partial(Totals.of, job.outputs, job.sizes.instances)
    totals = AsSingleton(once("Count the instances", count, counts, table))
    made = [cut | "Complete" >> beam.Map(_complete)]
    if job.config.next_sentence:
        made.append(_answered(sections, cut, table, job))
    shards = AsIter(_written(made, totals, job))
    finish = functools.partial(write_results, job)
    once("Results", finish, table, totals, reports, shards)


def _read(pipeline: "beam.Pipeline", job: _Job) -> "beam.PCollection":
    """Sections of the text, and reports."""
    import apache_beam as beam

    return (
        pipeline
        | "Tasks" >> beam.Create(job.tasks)
        | "Spread the tasks" >> beam.Reshuffle()
        | "Read"
        >> beam.FlatMap(text_ranges.read_task, job.config, job.sizes.sentences)
        # Or a runner might read the text once more for each use of it.
        | "Keep the text" >> beam.Reshuffle()
    )


def _answered(
    sections: "beam.PCollection", cut: "beam.PCollection", table: Any, job: _Job
) -> "beam.PCollection":
    """The pairs whose B is from another section, completed there."""
    import apache_beam as beam

    asked = {
        "sections": sections
        | "Copy" >> beam.FlatMap(cluster_stages.copies, table),
        "questions": cut | "Questions" >> beam.FlatMap(_questions),
    }
    return (
        asked
        | "Ask" >> beam.CoGroupByKey()
        | "Answer"
        >> beam.FlatMap(
            cluster_stages.answer, job.config, job.sizes.sentences, table
        )
    )


def _written(
    made: list["beam.PCollection"], totals: Any, job: _Job
) -> "beam.PCollection":
    """The output files, but for their names, from all instances."""
    import apache_beam as beam

    return (
        made
        | "All instances" >> beam.Flatten()
        | "Deal" >> beam.FlatMap(cluster_stages.deal, job.config, totals)
        | "Shuffle" >> beam.GroupByKey()
        | "Write the parts"
        >> beam.Map(cluster_stages.write_part, job.config, job.folder, totals)
        | "Parts of a file" >> beam.GroupByKey()
        | "Join the parts" >> beam.Map(join_parts, job)
    )


def _ignoring_first(_: None, function: Any, *inputs: Any) -> Any:
    return function(*inputs)


def _sections(found: TextSection | TaskReport) -> list[TextSection]:
    return [found] if isinstance(found, TextSection) else []


def _reports(found: TextSection | TaskReport) -> list[TaskReport]:
    return [found] if isinstance(found, TaskReport) else []


def _count(cut: CutSection) -> tuple[int, int]:
    return cut.index, cut.count


def _complete(cut: CutSection) -> Any:
    return cut.complete


def _questions(cut: CutSection) -> list[Any]:
    return cut.questions


@dataclasses.dataclass(frozen=True)
class Shard:
    """An output file that is complete but for its name.

    Attributes:
      number: Of the file.
      entry: What the manifest says of it.
      counts: What is in it, by the manifest's names.
      samples: As of `stages.Part`, as lists; nothing but in the first file.
    """

    number: int
    entry: dict[str, Any]
    counts: collections.Counter[str]
    samples: dict[str, list[Any]]


def join_parts(written: tuple[int, Iterable[WrittenPart]], job: _Job) -> Shard:
    """Sets the parts of a file end to end."""
    number, found = written
    parts = sorted(found, key=lambda part: part.first)
    checksum = hashlib.sha256()
    counts: collections.Counter[str] = collections.Counter()
    with files.atomic_writer(job.asides[number]) as file:
        for part in parts:
            path = cluster_stages.part_path(job.folder, part.first)
            with files.open_read(path) as part_file:
                data = part_file.read()
            file.write(data)
            checksum.update(data)
            counts.update(part.counts)
    num_records = sum(part.num_instances for part in parts)
    entry = report.shard_entry(
        job.outputs[number], num_records, checksum.hexdigest()
    )
    samples = {
        name: values.tolist() for name, values in parts[0].samples.items()
    }
    return Shard(number, entry, counts, samples)


def write_results(
    job: _Job,
    table: Directory,
    totals: Totals,
    reports: Iterable[TaskReport],
    shards: Iterable[Shard],
) -> None:
    """Leaves what whoever has started the job needs for a manifest."""
    text_bytes: collections.Counter[str] = collections.Counter()
    for task in reports:
        text_bytes.update(task.text_bytes)
    ordered = sorted(shards, key=lambda shard: shard.number)
    counts = collections.Counter(table.counts)
    for shard in ordered:
        counts.update(shard.counts)
    counts["instances"] = sum(shard.entry["records"] for shard in ordered)
    results: Mapping[str, Any] = {
        "mistake": totals.mistake,
        "text_bytes": text_bytes,
        "counts": counts,
        "shards": [shard.entry for shard in ordered],
        "samples": ordered[0].samples if ordered else {},
    }
    path = os.path.join(job.folder, _RESULTS)
    files.write_text(path, json.dumps(results))
