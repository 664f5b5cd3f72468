"""Results, as they are kept between programs."""

import dataclasses
import json
import pathlib
import shlex
import sys
from typing import Any, Self


class ResultsFile:
    """A base of dataclasses that are kept in a JSON file each."""

    def write(self, path: pathlib.Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(dataclasses.asdict(self), indent=1)
        path.write_text(text + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: pathlib.Path) -> Self:
        fields = json.loads(path.read_text(encoding="utf-8"))
        return cls(**{**fields, **cls.parts_of(fields)})

    @classmethod
    def parts_of(cls, fields: dict[str, Any]) -> dict[str, Any]:
        """Those of the fields that JSON does not give as they were."""
        raise NotImplementedError


def command_line() -> str:
    """What has been typed to make the results, for people to read."""
    return shlex.join(["python", *sys.argv])
