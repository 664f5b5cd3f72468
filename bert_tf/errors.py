"""The one exception that means "the user can mend this"."""


class InputError(ValueError):
    """What the user gave cannot be used.

    Raised with one line that says what was expected, what came
    (`Received: ...`), where, and what to do. The scripts print that line and
    exit with status 1; any other exception is a fault of ours and keeps its
    traceback.
    """
