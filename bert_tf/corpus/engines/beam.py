"""Runs data creation on Apache Beam.

Also checks Beam's options: Beam ignores unknown ones and prints a page of
usage for invalid values.
"""

import contextlib
import io
import logging
import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from bert_tf.corpus.engines import pipeline
from bert_tf.corpus.engines.pipeline import Collection, Table
from bert_tf.corpus.settings import CLUSTER_SIZES, CreationConfig, PieceSizes
from bert_tf.errors import InputError, did_you_mean, missing

if TYPE_CHECKING:
    import apache_beam as beam

# These runners get some options from a server, so unknown options are accepted.
# The same holds for custom runners, such as my_module.MyRunner.
_RUNNERS_WITH_OPTIONS = ("flink", "spark", "portable")
# The errors of a runner that does not exist or lacks an option or a package.
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

    stderr = io.StringIO()
    try:
        flags = shlex.split(options)
        # Beam's parser prints a hundred lines of usage and exits.
        with contextlib.redirect_stderr(stderr):
            parsed = PipelineOptions(flags)
            values = parsed.get_all_options(retain_unknown_options=True)
    except ValueError as error:
        raise _options_error(options, str(error)) from error
    except SystemExit as error:
        reason = stderr.getvalue().splitlines()[-1].partition("error: ")[2]
        raise _options_error(options, reason) from error
    if flags and not flags[0].startswith("--"):
        # Beam would ignore it.
        raise _options_error(options, f"expected --name=value: {flags[0]!r}")
    name = parsed.view_as(StandardOptions).runner or "direct"
    kind = name.lower().removesuffix("runner")
    if kind not in _RUNNERS_WITH_OPTIONS and "." not in name:
        beam_options = PipelineOptions([]).get_all_options()
        for unknown in values.keys() - beam_options.keys():
            advice = did_you_mean(unknown, beam_options)
            reason = f"there is no option --{unknown}.{advice}"
            raise _options_error(options, reason)
    try:
        # The DirectRunner would first download a program called Prism and is
        # otherwise the same as the FnApiRunner.
        return beam.Pipeline(
            "FnApiRunner" if kind == "direct" else name, parsed
        )
    except _RUNNER_ERRORS as error:
        raise _options_error(options, str(error)) from error


def _import_beam() -> Any:
    """Imports Apache Beam silently; later it logs warnings and errors only."""
    try:
        # The import logs warnings about Google Cloud packages.
        logging.disable(logging.WARNING)
        import apache_beam
    except ModuleNotFoundError as error:
        raise missing(
            "`runner=beam`", f"apache-beam ({error})", "beam"
        ) from error
    finally:
        logging.disable(logging.NOTSET)
    logging.getLogger("apache_beam").setLevel(logging.WARNING)
    return apache_beam


def _options_error(options: str, reason: str) -> InputError:
    line = " ".join(reason.split())
    return InputError(f"`beam_options={options!r}` cannot be used: {line}")


def run(job: "beam.Pipeline") -> None:
    """Runs a pipeline and waits until it ends.

    Raises:
      InputError: If a worker raised one, or the pipeline was stopped.
    """
    result = None
    try:
        result = job.run()
        state = result.wait_until_finish()
    except Exception as error:
        # Runners pass on a worker's exception within a long text.
        text = f"{type(error).__name__}: {error}"
        if match := _WORKER_ERROR.search(text):
            raise InputError(match[1]) from error
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


class BeamEngine:
    """Adds the stages to a pipeline; see `pipeline.Engine`."""

    def __init__(self, pipeline: "beam.Pipeline") -> None:
        import apache_beam

        self._beam = apache_beam
        self._pipeline = pipeline

    def spread(self, label: str, items: Sequence[Any]) -> Collection:
        start = self._pipeline | label >> self._beam.Create(items)
        return self.keep(f"{label}: spread", start)

    def flat_map(
        self,
        label: str,
        function: Callable[..., Iterable[Any]],
        collection: Collection,
        *arguments: Any,
    ) -> Collection:
        return collection | label >> self._beam.FlatMap(function, *arguments)

    def keep(self, label: str, collection: Collection) -> Collection:
        # Without it, a runner may compute the collection again for each use.
        return collection | label >> self._beam.Reshuffle()

    def union(self, label: str, *collections: Collection) -> Collection:
        return collections | label >> self._beam.Flatten()

    def group(self, label: str, *collections: Collection) -> Collection:
        return collections | label >> self._beam.CoGroupByKey()

    def once(
        self, label: str, function: Callable[..., Any], *inputs: Any
    ) -> Table:
        from apache_beam.pvalue import AsIter, AsSingleton

        given = [
            value if isinstance(value, AsSingleton) else AsIter(value)
            for value in inputs
        ]
        start = self._pipeline | f"{label}: begin" >> self._beam.Create([None])
        call = self._beam.Map(lambda _, *values: function(*values), *given)
        return AsSingleton(start | label >> call)

    def run(self) -> None:
        run(self._pipeline)


def create(
    config: CreationConfig, options: str, sizes: PieceSizes = CLUSTER_SIZES
) -> dict[str, Any]:
    """Writes the same files as `creation.create`; see `pipeline.create`.

    Args:
      config: The options. All workers must be able to access the files.
      options: Beam's options, as on a command line: "--runner=FlinkRunner".
      sizes: How the work is divided.

    Raises:
      InputError: If Beam is not installed; or as in `creation.create`.
    """
    engine = BeamEngine(new_pipeline(options))
    return pipeline.create(config, contextlib.nullcontext(engine), sizes)
