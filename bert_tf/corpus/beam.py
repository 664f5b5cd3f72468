"""Apache Beam's own options, and a pipeline run with them.

Beam passes over what it does not know and prints a page where something goes
wrong; here a slip is an error of one line.
"""

import collections
import contextlib
import dataclasses
import difflib
import functools
import hashlib
import io
import json
import logging as standard_logging
import os
import re
import secrets
import shlex
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from absl import logging

from bert_tf import files
from bert_tf.corpus import cluster, creation, ranges
from bert_tf.corpus.cluster import CutSection, Directory, Totals, WrittenPart
from bert_tf.corpus.ranges import ReadingTask, TaskReport, TextSection
from bert_tf.corpus.settings import (
    DEFAULT_SIZES,
    CreationConfig,
    PieceSizes,
)
from bert_tf.errors import InputError

if TYPE_CHECKING:
    import apache_beam as beam


# Apache Beam's own options, and a pipeline run with them.


# They learn some of their options from a server that is asked later. So may a
# runner of others', which is named as a class with its module.
_ASKING_RUNNERS = ("FlinkRunner", "SparkRunner", "PortableRunner")
_DIRECT_RUNNER = "DirectRunner"
# What runners raise who lack an option or a package, or do not exist.
_REFUSALS = (AttributeError, ImportError, RuntimeError, TypeError, ValueError)
# How a worker's complaint looks in what Beam says about it.
_COMPLAINT = re.compile(r"\bInputError: (.+?)(?: \[while running|\\n|$)", re.M)


def new_pipeline(words: str) -> "beam.Pipeline":
    """Makes an empty pipeline with options.

    Args:
      words: As on a command line; empty for the DirectRunner, in this process.

    Raises:
      InputError: Beam is not installed, or an option cannot be used.
    """
    beam = _imported()
    from apache_beam.options.pipeline_options import (
        PipelineOptions,
        StandardOptions,
    )

    try:
        flags = shlex.split(words)
    except ValueError as error:
        raise _bad(words, str(error)) from error
    said = io.StringIO()
    try:
        # Its parser prints its usage, a hundred lines, and exits.
        with contextlib.redirect_stderr(said):
            options = PipelineOptions(flags)
            given = options.get_all_options(retain_unknown_options=True)
            standard = options.view_as(StandardOptions)
    except SystemExit as error:
        reason = said.getvalue().splitlines()[-1].partition("error: ")[2]
        raise _bad(words, reason) from error
    runner = _runner_name(standard.runner, StandardOptions.KNOWN_RUNNER_NAMES)
    _check_words(words, flags)
    if runner not in _ASKING_RUNNERS and "." not in runner:
        _check_names(words, given, PipelineOptions([]).get_all_options())
    try:
        return beam.Pipeline(_runner(runner), options)
    except _REFUSALS as error:
        raise _bad(words, str(error)) from error


def _imported() -> Any:
    """Apache Beam, which says as much as a warning must from now on."""
    try:
        # What it says of Google's cloud while it is loaded concerns nobody.
        standard_logging.disable(standard_logging.WARNING)
        import apache_beam
    except ModuleNotFoundError as error:
        raise InputError(
            "Expected Apache Beam to be installed for --runner=beam. Received: "
            f"{error}; pip install 'bert_tf[beam]'"
        ) from error
    finally:
        standard_logging.disable(standard_logging.NOTSET)
    beam_logger = standard_logging.getLogger("apache_beam")
    beam_logger.setLevel(standard_logging.WARNING)
    return apache_beam


def run(pipeline: "beam.Pipeline") -> None:
    """Runs a pipeline and waits for its end.

    Raises:
      InputError: A worker raised one, the runner lacks an option, or somebody
        has stopped the pipeline.
    """
    result = None
    try:
        result = pipeline.run()
        state = result.wait_until_finish()
    except Exception as error:
        # Runners pass a worker's exception on as part of a long text.
        if complaint := _COMPLAINT.search(str(error)):
            raise InputError(complaint[1]) from error
        if isinstance(error, InputError | NotImplementedError):
            said = str(error).partition(" [while running")[0]
            raise InputError(said) from error
        raise
    except BaseException:
        # Ctrl-C: a cluster would go on by itself.
        if result is not None:
            result.cancel()
        raise
    if state not in (None, "DONE"):
        raise InputError(
            "Expected the pipeline to come to its end. Received: the state "
            f"{state}; see what the runner has logged"
        )


def _bad(words: str, reason: str) -> InputError:
    line = " ".join(reason.split())
    return InputError(
        f"Expected --beam_options to hold options of Apache Beam. Received: "
        f"--beam_options={words!r}: {line}"
    )


def _runner_name(given: str | None, known: list[str]) -> str:
    """The runner's name as Beam spells it; others are classes in full."""
    name = given or _DIRECT_RUNNER
    if "." in name:
        return name
    spelt = {runner.lower(): runner for runner in known}
    for spelling in (name.lower(), f"{name.lower()}runner"):
        if spelling in spelt:
            return spelt[spelling]
    raise InputError(
        f"Expected the name of a runner in --beam_options: {', '.join(known)}. "
        f"Received: --runner={name}"
    )


def _check_words(words: str, flags: list[str]) -> None:
    """Refuses what looks like no option, of which Beam takes no notice."""
    is_value = False
    for flag in flags:
        if not flag.startswith("--") and not is_value:
            raise _bad(words, f"{flag!r} where a --name=value is expected")
        is_value = flag.startswith("--") and "=" not in flag


def _check_names(
    words: str, given: dict[str, Any], known: dict[str, Any]
) -> None:
    for name in given.keys() - known.keys():
        near = difflib.get_close_matches(name, known, 1)
        advice = f"; did you mean --{near[0]}?" if near else ""
        raise _bad(words, f"there is no option --{name}{advice}")


def _runner(name: str) -> Any:
    """The runner, or its name.

    Beam's DirectRunner begins with the download of another one, a program
    called Prism, and is else this one.
    """
    if name != _DIRECT_RUNNER:
        return name
    from apache_beam.runners.portability.fn_api_runner import FnApiRunner

    return FnApiRunner()


# Text to pre-training records on a cluster, as an Apache Beam pipeline.


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
    pipeline = new_pipeline(options)
    inputs = config.input_paths()
    outputs = config.output_paths(inputs)
    vocabulary = creation.vocabulary_entry(config)  # A bad one shows at once.
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
        run(pipeline)
        results = files.read_json(os.path.join(folder, _RESULTS))
        if results["mistake"]:
            raise InputError(results["mistake"])
        counts = results["counts"]
        creation.check_instances(config, counts)
        creation.log_samples(config, results["samples"])
        _log_paths("Wrote output files", outputs)
        manifest = creation.manifest(
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
    total = sum(ranges.size_of(path) for path in paths)
    return ranges.plan_tasks(paths, max(text_bytes, total // MAX_TASKS))


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
    entries = AsIter(sections | "Entries" >> beam.Map(cluster.entry_of))
    reports = AsIter(read | "Reports" >> beam.FlatMap(_reports))
    number = functools.partial(Directory.of, job.config)
    table = AsSingleton(once("Number the documents", number, entries, reports))
    cut = sections | "Cut" >> beam.FlatMap(
        cluster.cut, job.config, job.sizes.sentences, table
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
        >> beam.FlatMap(ranges.read_task, job.config, job.sizes.sentences)
        # Or a runner might read the text once more for each use of it.
        | "Keep the text" >> beam.Reshuffle()
    )


def _answered(
    sections: "beam.PCollection", cut: "beam.PCollection", table: Any, job: _Job
) -> "beam.PCollection":
    """The pairs whose B is from another section, completed there."""
    import apache_beam as beam

    asked = {
        "sections": sections | "Copy" >> beam.FlatMap(cluster.copies, table),
        "questions": cut | "Questions" >> beam.FlatMap(_questions),
    }
    return (
        asked
        | "Ask" >> beam.CoGroupByKey()
        | "Answer"
        >> beam.FlatMap(cluster.answer, job.config, job.sizes.sentences, table)
    )


def _written(
    made: list["beam.PCollection"], totals: Any, job: _Job
) -> "beam.PCollection":
    """The output files, but for their names, from all instances."""
    import apache_beam as beam

    return (
        made
        | "All instances" >> beam.Flatten()
        | "Deal" >> beam.FlatMap(cluster.deal, job.config, totals)
        | "Shuffle" >> beam.GroupByKey()
        | "Write the parts"
        >> beam.Map(cluster.write_part, job.config, job.folder, totals)
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
            path = cluster.part_path(job.folder, part.first)
            with files.open_read(path) as part_file:
                data = part_file.read()
            file.write(data)
            checksum.update(data)
            counts.update(part.counts)
    num_records = sum(part.num_instances for part in parts)
    entry = creation.shard_entry(
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
