"""Apache Beam's own options, and a pipeline run with them.

Beam passes over what it does not know and prints a page where something goes
wrong; here a slip is an error of one line.
"""

import contextlib
import difflib
import io
import logging
import re
import shlex
from typing import TYPE_CHECKING, Any

from bert_tf.errors import InputError

if TYPE_CHECKING:
    import apache_beam as beam

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
        logging.disable(logging.WARNING)
        import apache_beam
    except ModuleNotFoundError as error:
        raise InputError(
            "Expected Apache Beam to be installed for --runner=beam. Received: "
            f"{error}; pip install 'bert_tf[beam]'"
        ) from error
    finally:
        logging.disable(logging.NOTSET)
    logging.getLogger("apache_beam").setLevel(logging.WARNING)
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
