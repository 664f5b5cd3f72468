"""The command line of every job.

`main` makes absl flags of a job's options (`bert_tf.options`), parses the
command line and runs the job. Mistakes of the user are reported in one line,
with exit status 1 or 2 and without a traceback. A word that is not a flag is a
mistake too: `--do_lower_case False` sets the flag to *true* and leaves "False"
over, which the original ignored.

No other module of the package reads `absl.flags.FLAGS`.
"""

import importlib
import os
import signal
import sys
import typing
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from absl import app, flags, logging

from bert_tf import options, signals
from bert_tf.errors import InputError, did_you_mean, listed
from bert_tf.options import OptionError, Options

FLAGS = flags.FLAGS

_DEFINE: dict[type, Callable[..., Any]] = {
    bool: flags.DEFINE_bool,
    int: flags.DEFINE_integer,
    float: flags.DEFINE_float,
    str: flags.DEFINE_string,
    tuple: flags.DEFINE_list,
}

# The modules of `bert_tf.jobs` with a function `run`.
JOBS = (
    "vocabulary",
    "pretraining_data",
    "pretraining",
    "classifier",
    "squad",
    "ner",
    "embeddings",
    "features",
    "fill_mask",
    "convert_checkpoint",
    "convert_saved_model",
    "attention",
)


def main(run: Callable[[Any], Any]) -> None:
    """Runs a job with the options of the command line; does not return.

    Args:
      run: The job. Its parameter `config` is annotated with an `Options` class,
        whose options become flags.
    """
    config_type = typing.get_type_hints(run)["config"]
    define_flags(config_type)
    # --help prints the docstring of the main module.
    sys.modules["__main__"].__doc__ = sys.modules[run.__module__].__doc__
    run_program(
        lambda: run(read_config(config_type)), options.required(config_type)
    )


def command() -> None:
    """Runs `bert-tf JOB --flag=value ...`, the installed package's command."""
    program, *words = sys.argv
    usage = f"Name a job: {', '.join(JOBS)}."
    if words[:1] in (["--help"], ["-h"]):
        # Written at once: `bert-tf --help | head` may close the pipe early.
        jobs = "\n".join(f"  {job:20}{_summary(job)}" for job in JOBS)
        print(
            f"bert-tf JOB --flag=value ...\n\n{jobs}\n\n"
            "`bert-tf JOB --help` lists the flags of a job.\n",
            end="",
        )
        sys.exit(0)
    if not words or words[0] not in JOBS:
        sys.argv[0] = os.path.basename(program)
        unknown = ""
        if words:
            nearest = did_you_mean(words[0], JOBS)
            unknown = f"Unknown job {words[0]!r}.{nearest} "
        _fail(
            f"{unknown}{usage} `bert-tf JOB --help` lists its flags.", status=2
        )
    job = importlib.import_module(f"bert_tf.jobs.{words[0]}")
    sys.argv = [f"{os.path.basename(program)} {words[0]}", *words[1:]]
    main(job.run)


def _summary(job: str) -> str:
    """Returns the first line of a job's docstring without importing it."""
    path = os.path.join(os.path.dirname(__file__), "jobs", f"{job}.py")
    with open(path, encoding="utf-8") as file:
        return file.readline().strip('".\n')


def define_flags(
    config_type: type[Options], values: flags.FlagValues = FLAGS
) -> None:
    """Defines a flag in `values` for each option."""
    for name, (kind, known) in options.declared(config_type).items():
        default = known.fallback
        if default is None and name not in options.required(config_type):
            default = config_type.__dataclass_fields__[name].default
        if isinstance(default, tuple):
            default = [*default]
        # `Options` checks ranges, for callers in Python too.
        text = f"{known.help} {known.range}".rstrip()
        if known.choices:
            flags.DEFINE_enum(
                name, default, known.choices, text, flag_values=values
            )
        else:
            _DEFINE[kind](name, default, text, flag_values=values)


def read_config(
    config_type: type[Options], values: flags.FlagValues = FLAGS
) -> Any:
    """Returns the configuration with the values of parsed flags.

    An option with a fallback stays None unless the command line gives it.

    Raises:
      OptionError: The value of a flag is invalid.
    """
    return config_type(
        **{
            name: values[name].value
            for name, (_, known) in options.declared(config_type).items()
            if known.fallback is None or values[name].present
        }
    )


def run_program(main: Callable[[], Any], required: Sequence[str] = ()) -> None:
    """Parses the command line, then calls `main`; does not return.

    Args:
      main: The program, which reads the parsed flags.
      required: Names of the flags that must be given.
    """
    # --help shows the flags of the main module only. These are defined here.
    for module, defined in FLAGS.flags_by_module_dict().items():
        if module.startswith("bert_tf."):
            for flag in defined:
                FLAGS.register_key_flag_for_module(sys.argv[0], flag)
    app.run(
        lambda argv: _guarded(main),
        flags_parser=lambda argv: _parse(argv, required),
    )


def _parse(argv: Sequence[str], required: Sequence[str]) -> list[str]:
    logging.set_verbosity(logging.INFO)
    try:
        words = FLAGS(argv)
    except (flags.Error, ValueError) as error:
        # absl raises ValueError for --noNAME=VALUE.
        _fail(f"{error} (--help lists the flags)", status=2)
    except SystemExit:
        sys.exit(0)  # absl gives --help the status of a failure.
    # A shell turns --name=$VARIABLE into --name= if the variable is not set.
    missing = [f"--{n}" for n in required if FLAGS[n].value in (None, "")]
    if missing:
        _fail(f"{listed(missing)} must be given (--help lists the flags)", 2)
    if len(words) > 1:
        _fail(
            f"{words[1]!r} is not a flag of the form --name=value (a boolean "
            "is switched off by --noNAME or --NAME=false)",
            status=2,
        )
    for name in FLAGS:
        if fault := options.number_fault(FLAGS[name].value):
            _fail(f"--{name} {fault} (--help lists the flags)", status=2)
    return words


def _guarded(main: Callable[[], Any]) -> None:
    try:
        with signals.stopping():
            main()
    except OptionError as error:
        _fail(f"{error} (--help lists the flags)", status=2)
    except (InputError, OSError) as error:
        _fail(str(error), status=1)
    except KeyboardInterrupt:
        _fail("interrupted", status=128 + signal.SIGINT)
    except signals.Stopped as stopped:
        name = signal.Signals(stopped.number).name
        _fail(f"stopped by {name}", status=128 + stopped.number)


def _fail(message: str, status: int) -> NoReturn:
    """Prints one line and exits with `status`."""
    line = " ".join(message.split())
    print(f"{sys.argv[0]}: error: {line}", file=sys.stderr)
    sys.exit(status)
