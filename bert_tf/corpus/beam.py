"""Creates pre-training records on a cluster, with an Apache Beam pipeline.

Also checks Beam's options: Beam ignores unknown ones and prints a page of
usage for others.
"""

import collections
import contextlib
import dataclasses
import functools
import hashlib
import io
import json
import logging as standard_logging
import os
import re
import secrets
import shlex
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from absl import logging

from bert_tf import files
from bert_tf.corpus import cluster, creation, ranges
from bert_tf.corpus.cluster import InstanceTable, SectionTable
from bert_tf.corpus.creation import WrittenChunk
from bert_tf.corpus.ranges import ReadingTask, TaskReport, TextSection
from bert_tf.corpus.settings import DEFAULT_SIZES, CreationConfig, PieceSizes
from bert_tf.errors import InputError, did_you_mean, listed, wrong_value
from bert_tf.packages import missing

if TYPE_CHECKING:
    import apache_beam as beam

# These runners ask a server for some of their options, so unknown names are
# accepted; likewise for custom runners, which are named as a class with its
# module.
_RUNNERS_WITH_OPTIONS = ("FlinkRunner", "SparkRunner", "PortableRunner")
_DIRECT_RUNNER = "DirectRunner"
# What runners raise if an option or a package is missing or they do not exist.
_RUNNER_ERRORS = (
    AttributeError,
    ImportError,
    RuntimeError,
    TypeError,
    ValueError,
)
# A worker's InputError in the text of the error that Beam raises.
_WORKER_ERROR = re.compile(
    r"\bInputError: (.+?)(?: \[while running|\\n|$)", re.M
)

# The largest number of tasks: all are listed in the job's description, whose
# size Dataflow limits.
MAX_TASKS = 10_000
# The file in which the pipeline leaves its results.
_RESULTS = "results.json"


def new_pipeline(options: str) -> "beam.Pipeline":
    """Makes an empty pipeline.

    Args:
      options: As on a command line. Without a runner, the DirectRunner runs the
        pipeline in this process.

    Raises:
      InputError: If Beam is not installed or an option cannot be used.
    """
    beam = _import_beam()
    from apache_beam.options.pipeline_options import (
        PipelineOptions,
        StandardOptions,
    )

    try:
        flags = shlex.split(options)
    except ValueError as error:
        raise _options_error(options, str(error)) from error
    stderr = io.StringIO()
    try:
        # Beam's parser prints a hundred lines of usage and exits.
        with contextlib.redirect_stderr(stderr):
            parsed = PipelineOptions(flags)
            values = parsed.get_all_options(retain_unknown_options=True)
            standard = parsed.view_as(StandardOptions)
    except SystemExit as error:
        reason = stderr.getvalue().splitlines()[-1].partition("error: ")[2]
        raise _options_error(options, reason) from error
    name = _runner_name(standard.runner, StandardOptions.KNOWN_RUNNER_NAMES)
    _check_flags(options, flags)
    if name not in _RUNNERS_WITH_OPTIONS and "." not in name:
        beam_options = PipelineOptions([]).get_all_options()
        for unknown in values.keys() - beam_options.keys():
            advice = did_you_mean(unknown, beam_options)
            reason = f"there is no option --{unknown}.{advice}"
            raise _options_error(options, reason)
    runner = name
    if name == _DIRECT_RUNNER:
        # The DirectRunner would first download a program called Prism and is
        # otherwise the same as this runner.
        from apache_beam.runners.portability.fn_api_runner import FnApiRunner

        runner = FnApiRunner()
    try:
        return beam.Pipeline(runner, parsed)
    except _RUNNER_ERRORS as error:
        raise _options_error(options, str(error)) from error


def _import_beam() -> Any:
    """Imports Apache Beam without its messages below the level WARNING."""
    try:
        # While it is imported, it logs warnings about Google Cloud packages.
        standard_logging.disable(standard_logging.WARNING)
        import apache_beam
    except ModuleNotFoundError as error:
        raise missing(
            "`runner=beam`", f"apache-beam ({error})", "beam"
        ) from error
    finally:
        standard_logging.disable(standard_logging.NOTSET)
    beam_logger = standard_logging.getLogger("apache_beam")
    beam_logger.setLevel(standard_logging.WARNING)
    return apache_beam


def _options_error(options: str, reason: str) -> InputError:
    line = " ".join(reason.split())
    return InputError(f"`beam_options={options!r}` cannot be used: {line}")


def _runner_name(wish: str | None, runners: list[str]) -> str:
    """Returns the runner's name as Beam spells it; keeps custom names."""
    name = wish or _DIRECT_RUNNER
    if "." in name:
        return name
    by_lower_case = {runner.lower(): runner for runner in runners}
    for spelling in (name.lower(), f"{name.lower()}runner"):
        if spelling in by_lower_case:
            return by_lower_case[spelling]
    raise wrong_value(
        "--runner in `beam_options`",
        f"one of {listed(runners, last='or', most=20)}",
        name,
    )


def _check_flags(options: str, flags: list[str]) -> None:
    """Raises InputError for words that are not options, which Beam ignores."""
    is_value = False
    for flag in flags:
        if not flag.startswith("--") and not is_value:
            raise _options_error(
                options, f"expected --name=value, got {flag!r}"
            )
        is_value = flag.startswith("--") and "=" not in flag


def run(pipeline: "beam.Pipeline") -> None:
    """Runs a pipeline and waits until it ends.

    Raises:
      InputError: If a worker raised one, the runner lacks an option, or the
        pipeline was stopped.
    """
    result = None
    try:
        result = pipeline.run()
        state = result.wait_until_finish()
    except Exception as error:
        # Runners pass on a worker's exception within a long text.
        if match := _WORKER_ERROR.search(str(error)):
            raise InputError(match[1]) from error
        if isinstance(error, InputError | NotImplementedError):
            message = str(error).partition(" [while running")[0]
            raise InputError(message) from error
        raise
    except BaseException:
        # After Ctrl-C, a cluster would continue the job.
        if result is not None:
            result.cancel()
        raise
    if state not in (None, "DONE"):
        raise InputError(
            f"The pipeline ended in the state {state}. See the runner's log."
        )


@dataclasses.dataclass(frozen=True)
class _Job:
    """The arguments of all steps of a pipeline."""

    config: CreationConfig
    sizes: PieceSizes
    tasks: tuple[ReadingTask, ...]
    outputs: tuple[str, ...]
    temporaries: tuple[str, ...]  # Renamed to the outputs at the end.
    folder: str  # For intermediate files.


def create(
    config: CreationConfig, options: str, sizes: PieceSizes = DEFAULT_SIZES
) -> dict[str, Any]:
    """Writes the same files as `creation.create`.

    The output files appear when all of them are complete. Meanwhile a folder
    next to the first output file holds all records in chunks.

    Args:
      config: The options. All workers must be able to access the files.
      options: Beam's options, as on a command line: "--runner=FlinkRunner".
      sizes: How the work is divided.

    Returns:
      The manifest: settings, counts and checksums.

    Raises:
      InputError: If Beam is not installed; or as in `creation.create`.
    """
    pipeline = new_pipeline(options)
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
        temporaries = tuple(
            stack.enter_context(_temporary_for(path)) for path in outputs
        )
        tasks = tuple(plan_tasks(inputs, sizes.text_bytes))
        job = _Job(config, sizes, tasks, tuple(outputs), temporaries, folder)
        creation.log_paths("Reading from input files", inputs)
        assemble(pipeline, job)
        run(pipeline)
        results = files.read_json(os.path.join(folder, _RESULTS))
        if results["error"]:
            raise InputError(results["error"])
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
    logging.info("Wrote %d total instances", manifest["counts"]["instances"])
    return manifest


def plan_tasks(paths: list[str], text_bytes: int) -> Iterator[ReadingTask]:
    """Divides files into tasks of `text_bytes`, or into about MAX_TASKS."""
    total = sum(map(ranges.size_of, paths))
    return ranges.plan_tasks(paths, max(text_bytes, total // MAX_TASKS))


@contextlib.contextmanager
def _shared_folder(output: str) -> Iterator[str]:
    """Makes a folder next to an output file for intermediate files."""
    folder = files.temporary_prefix(output) + secrets.token_hex(4)
    with files.input_errors("write", output):
        files.remove_leftovers(output)
        files.makedirs(folder)
    try:
        yield folder
    finally:
        files.remove_tree(folder)


@contextlib.contextmanager
def _temporary_for(path: str) -> Iterator[str]:
    """Yields a file that a worker writes and that is renamed at the end.

    It is created at once, so that a path that cannot be written fails before
    hours of work.
    """
    path = files.follow_links(path)
    files.remove_leftovers(path)
    temporary = files.temporary_prefix(path) + secrets.token_hex(4)
    with files.input_errors("write", path):
        files.makedirs(os.path.dirname(path) or ".")
    try:
        files.write_text(temporary, "")
        yield temporary
        with files.input_errors("write", path):
            files.rename(temporary, path)
    except BaseException:
        if files.exists(temporary):
            files.remove(temporary)
        raise


def assemble(pipeline: "beam.Pipeline", job: _Job) -> None:
    """Adds the steps of `cluster`, and one that writes the file of results."""
    import apache_beam as beam
    from apache_beam.pvalue import AsIter, AsSingleton

    def once(label: str, function: Any, *inputs: Any) -> "beam.PCollection":
        """Calls a function on one worker with the results of all."""
        start = pipeline | f"{label}: begin" >> beam.Create([None])
        call = beam.Map(lambda _, *values: function(*values), *inputs)
        return start | label >> call

    contents = (
        pipeline
        | "Tasks" >> beam.Create(job.tasks)
        | "Spread the tasks" >> beam.Reshuffle()
        | "Read"
        >> beam.FlatMap(ranges.read_task, job.config, job.sizes.sentences)
        # Without it, a runner may read the text again for each use.
        | "Keep the text" >> beam.Reshuffle()
    )
    sections = contents | "Sections" >> beam.FlatMap(_sections)
    entries = AsIter(sections | "Entries" >> beam.Map(cluster.entry_of))
    reports = AsIter(contents | "Reports" >> beam.FlatMap(_reports))
    number = functools.partial(SectionTable.of, job.config)
    table = AsSingleton(once("Number the documents", number, entries, reports))
    cut = sections | "Cut" >> beam.FlatMap(
        cluster.cut_section, job.config, job.sizes.sentences, table
    )
    counts = AsIter(cut | "Counts" >> beam.Map(lambda c: (c.index, c.count)))
    count = functools.partial(
        InstanceTable.of, job.outputs, job.sizes.instances
    )
    instances = AsSingleton(once("Count the instances", count, counts, table))
    complete = [cut | "Complete" >> beam.Map(lambda c: c.complete)]
    if job.config.next_sentence:
        grouped = {
            "sections": sections
            | "Replicate" >> beam.FlatMap(cluster.replicate, table),
            "requests": cut | "Requests" >> beam.FlatMap(lambda c: c.requests),
        } | "Group by section" >> beam.CoGroupByKey()
        complete.append(
            grouped
            | "Complete the pairs"
            >> beam.FlatMap(
                cluster.complete_pairs, job.config, job.sizes.sentences, table
            )
        )
    shards = AsIter(
        complete
        | "All instances" >> beam.Flatten()
        | "Assign chunks"
        >> beam.FlatMap(cluster.assign_chunks, job.config, instances)
        | "Group by chunk" >> beam.GroupByKey()
        | "Write the chunks"
        >> beam.Map(cluster.write_chunk, job.config, job.folder, instances)
        | "Group by file" >> beam.GroupByKey()
        | "Join the chunks" >> beam.Map(_join_chunks, job)
    )
    finish = functools.partial(_write_results, job)
    once("Results", finish, table, instances, reports, shards)


# Beam checks the types of the steps by these annotations.


def _sections(item: TextSection | TaskReport) -> list[TextSection]:
    return [item] if isinstance(item, TextSection) else []


def _reports(item: TextSection | TaskReport) -> list[TaskReport]:
    return [item] if isinstance(item, TaskReport) else []


@dataclasses.dataclass(frozen=True)
class Shard:
    """An output file that is complete except for its name."""

    number: int
    entry: dict[str, Any]  # Its entry in the manifest.
    counts: collections.Counter[str]
    samples: dict[str, list[Any]]  # See `creation.WrittenChunk`.


def _join_chunks(
    written: tuple[int, Iterable[tuple[int, WrittenChunk]]], job: _Job
) -> Shard:
    """Concatenates the chunks of an output file."""
    number, pairs = written
    chunks = dict(pairs)
    checksum = hashlib.sha256()
    counts: collections.Counter[str] = collections.Counter()
    with files.atomic_writer(job.temporaries[number]) as file:
        for first in sorted(chunks):
            path = cluster.chunk_path(job.folder, first)
            with files.open_read(path) as chunk_file:
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
    return Shard(number, entry, counts, samples)


def _write_results(
    job: _Job,
    table: SectionTable,
    instances: InstanceTable,
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
        "error": instances.error,
        "text_bytes": text_bytes,
        "counts": counts,
        "shards": [shard.entry for shard in ordered],
        "samples": ordered[0].samples if ordered else {},
    }
    path = os.path.join(job.folder, _RESULTS)
    files.write_text(path, json.dumps(results))
