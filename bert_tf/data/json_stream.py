"""One JSON object, written while its members are still being made."""

import contextlib
import json
from typing import Any

from bert_tf import files


class JsonObjectWriter:
    """Writes `json.dumps(members, indent=4) + "\\n"` without the whole dict.

    The file appears only when it is complete; see `files.atomic_writer`. Use
    it in a `with` statement.

    Args:
      path: The file; one of that name is replaced.

    Raises:
      InputError: The place cannot be written to (when entered), or is full.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._is_empty = True

    def __enter__(self) -> "JsonObjectWriter":
        with contextlib.ExitStack() as stack:
            self._file = stack.enter_context(files.atomic_writer(self._path))
            self._file.write(b"{")
            # Runs before the file is renamed, and not where anything failed.
            stack.push(self._finish)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exception: Any) -> bool | None:
        return self._stack.__exit__(*exception)

    def add(self, key: str, value: Any) -> None:
        """Appends a member.

        Args:
          key: One that is new: nobody looks whether it is.
          value: Whatever `json` can write.

        Raises:
          ValueError: `value` holds NaN or an infinity, for which JSON has no
            spelling.
        """
        lines = json.dumps({key: value}, indent=4, allow_nan=False)
        member = lines.removeprefix("{").removesuffix("\n}")
        self._file.write(("" if self._is_empty else ",").encode())
        self._file.write(member.encode())
        self._is_empty = False

    def _finish(self, kind: type[BaseException] | None, *_: Any) -> None:
        if kind is None:
            self._file.write(b"}\n" if self._is_empty else b"\n}\n")
