"""The command line: one way in for every script.

`run` replaces `absl.app.run`: an unknown flag is an error with the nearest
name beside it, a stray word is an error (`--do_lower_case False` sets the flag
to *true* and leaves "False" over, which the original never said), and what the
user can mend is told in one line without a traceback.
"""

import sys
from collections.abc import Callable, Sequence

from absl import app, flags, logging

from bert_tf.errors import InputError

FLAGS = flags.FLAGS


def run(main: Callable[[], None], required: Sequence[str] = ()) -> None:
    """Parses the command line, then runs `main`; never returns.

    Args:
      main: The script's own function; it takes nothing and reads FLAGS.
      required: Names of the flags that have to be given.
    """
    flags.mark_flags_as_required(list(required))
    app.run(lambda argv: _guarded(main), flags_parser=_parse)


def _parse(argv: Sequence[str]) -> list[str]:
    logging.set_verbosity(logging.INFO)
    try:
        words = FLAGS(argv)
    except flags.Error as error:
        _fail(f"{error} (--help lists the flags)", status=2)
    if len(words) > 1:
        _fail(
            "expected flags of the form --name=value only. Received: "
            f"{words[1]!r} (a boolean is switched off by --noNAME or "
            "--NAME=false)",
            status=2,
        )
    return words


def _guarded(main: Callable[[], None]) -> None:
    try:
        main()
    except (InputError, OSError) as error:
        _fail(str(error), status=1)


def _fail(message: str, status: int) -> None:
    """Prints one line and leaves with `status`."""
    line = " ".join(message.split())
    print(f"{sys.argv[0]}: error: {line}", file=sys.stderr)
    sys.exit(status)
