"""The command line of every job.

`run_job` defines absl flags for a job's options (`bert_tf.base.options`),
parses and checks the command line, and only then imports the job. Mistakes of
the user are reported in one line, with exit status 1 or 2 and without a
traceback. A word that is not a flag is a mistake too: `--do_lower_case False`
sets the flag to *true* and leaves the word "False", which the original ignored.

No other module of the package reads `absl.flags.FLAGS`.
"""

import dataclasses
import os
import re
import signal
import sys
import typing
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from absl import app, flags, logging

from bert_tf.base import options, signals
from bert_tf.base.options import OptionError, Options
from bert_tf.errors import InputError, listed, printable

FLAGS = flags.FLAGS

# An argument in a message, perhaps with its value; see `bert_tf.errors`.
_ARGUMENT = re.compile(r"`(\w+)(=[^`]*)?`")

_DEFINE: dict[type, Callable[..., Any]] = {
    bool: flags.DEFINE_bool,
    int: flags.DEFINE_integer,
    float: flags.DEFINE_float,
    str: flags.DEFINE_string,
    tuple: flags.DEFINE_list,
}


def main(run: Callable[[Any], Any]) -> None:
    """Runs a job with the options of the command line; does not return.

    Args:
      run: The job. Its parameter `config` is annotated with an `Options` class,
        whose options become flags.
    """
    config_type = typing.get_type_hints(run)["config"]
    run_job(config_type, lambda: run, sys.modules[run.__module__].__doc__)


def run_job(
    config_type: type[Options],
    load: Callable[[], Callable[[Any], Any]],
    page: str | None,
) -> None:
    """Runs a job that takes time to import; does not return.

    Args:
      config_type: The class of its options, which become flags.
      load: Imports and returns the job. Called if the command line is correct.
      page: What --help prints before the flags.
    """

    def run() -> None:
        config = read_config(config_type)
        config.check()
        job = load()
        # Validates again: TensorFlow, which is now imported, needs UTF-8.
        dataclasses.replace(config)
        job(config)

    define_flags(config_type)
    # --help prints the docstring of the main module.
    sys.modules["__main__"].__doc__ = page
    _start(run, options.required(config_type))


def _start(run: Callable[[], Any], required: Sequence[str]) -> None:
    """Parses the command line and calls `run`; does not return."""
    # absl's --help shows only flags that are registered for the script.
    for module, defined in FLAGS.flags_by_module_dict().items():
        if module.startswith("bert_tf."):
            for flag in defined:
                FLAGS.register_key_flag_for_module(sys.argv[0], flag)
    logger = logging.get_absl_logger()
    logger.addFilter(_name_flags)
    try:
        app.run(
            lambda argv: _guarded(run),
            flags_parser=lambda argv: _parse(argv, required),
        )
    finally:
        logger.removeFilter(_name_flags)


def define_flags(
    config_type: type[Options], values: flags.FlagValues = FLAGS
) -> None:
    """Defines a flag in `values` for each option."""
    for name, (kind, declaration) in options.declared(config_type).items():
        default = declaration.fallback
        if default is None and name not in options.required(config_type):
            default = config_type.__dataclass_fields__[name].default
        if isinstance(default, tuple):
            default = [*default]
        # `Options` checks ranges, for callers in Python too.
        text = f"{declaration.help} {declaration.range}".rstrip()
        if declaration.choices:
            flags.DEFINE_enum(
                name, default, declaration.choices, text, flag_values=values
            )
        else:
            _DEFINE[kind](name, default, text, flag_values=values)


def read_config(
    config_type: type[Options], values: flags.FlagValues = FLAGS
) -> Any:
    """Returns the configuration with the values of parsed flags.

    An option with a fallback stays None unless its flag is passed.

    Raises:
      OptionError: The value of a flag is invalid.
    """
    return config_type(
        **{
            name: values[name].value
            for name, (_, declaration) in options.declared(config_type).items()
            if declaration.fallback is None or values[name].present
        }
    )


def _parse(argv: Sequence[str], required: Sequence[str]) -> list[str]:
    logging.set_verbosity(logging.INFO)
    try:
        words = FLAGS(argv)
    except (flags.Error, ValueError) as error:
        # absl raises ValueError for --noNAME=VALUE.
        fail(f"{error} (--help lists the flags)", status=2)
    except (SystemExit, BrokenPipeError):
        _end_of_help()
    # A shell turns --name=$VARIABLE into --name= if the variable is not set.
    missing = [f"--{n}" for n in required if FLAGS[n].value in (None, "")]
    if missing:
        fail(f"{listed(missing)} must be passed (--help lists the flags)", 2)
    if len(words) > 1:
        fail(
            f"{words[1]!r} is not a flag of the form --name=value (a boolean "
            "is switched off by --noNAME or --NAME=false)",
            status=2,
        )
    return words


def _end_of_help() -> NoReturn:
    """Exits with status 0; absl exits with a failure status after --help."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        # `--help | head` closes the pipe early, which is not an error. Python
        # would report it when it flushes the rest at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(0)


def _guarded(run: Callable[[], Any]) -> None:
    try:
        with signals.stopping():
            run()
    except OptionError as error:
        fail(f"{error} (--help lists the flags)", status=2)
    except (InputError, OSError) as error:
        fail(str(error), status=1)
    except (KeyboardInterrupt, signals.Stopped) as stop:
        number = getattr(stop, "number", signal.SIGINT)
        fail(signals.described(number), status=128 + number)


def fail(message: str, status: int) -> NoReturn:
    """Prints an error message in one line and exits with `status`."""
    line = printable(" ".join(with_flags(message).split()))
    print(f"{sys.argv[0]}: error: {line}", file=sys.stderr)
    sys.exit(status)


def with_flags(message: str) -> str:
    """Replaces the names of arguments in a message by flags.

    "`labels` needs `header=False`" becomes "--labels needs --noheader". Other
    words in backquotes stay as they are.
    """

    def flag(argument: re.Match[str]) -> str:
        name, value = argument.groups()
        if name not in FLAGS:
            return argument[0]
        if FLAGS[name].boolean and value in ("=True", "=False"):
            return f"--{'no' if value == '=False' else ''}{name}"
        return f"--{name}{value or ''}"

    return _ARGUMENT.sub(flag, message)


def _name_flags(record: Any) -> bool:
    """Applies `with_flags` and `printable` to a message; a logging filter."""
    record.msg, record.args = printable(with_flags(record.getMessage())), ()
    return True
