"""Declares the options of a job: a frozen dataclass whose fields are flags.

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class VocabularyConfig(Options):
        input_file: str = option("Text files to learn from.")
        vocab_size: int = option("Number of tokens.", default=30522, at_least=1)

The name, type, default, range, choices and help text of an option are declared
once. `bert_tf.cli` turns options into command-line flags; Python code passes
them as keyword arguments. `Option` lists what else can be declared.
"""

import dataclasses
import math
import numbers
import os
import sys
import types
import typing
from collections.abc import Sequence
from typing import Any

from bert_tf.base import files
from bert_tf.errors import InputError, listed

# TensorFlow and NumPy have 64-bit integers.
LARGEST_INTEGER = 2**63 - 1

_NAMES = {
    bool: "true or false",
    int: "an integer",
    float: "a number",
    str: "a string",
    tuple: "a list of strings",
}


class OptionError(InputError):
    """The value of an option is invalid, regardless of the other options."""


@dataclasses.dataclass(frozen=True)
class Option:
    """The declaration of an option, besides its name, type and default.

    Attributes:
      help: The help text, in whole sentences.
      choices: The valid values; empty for any.
      at_least: The lowest valid number.
      at_most: The highest valid number.
      below: The upper limit, which is not itself valid.
      fallback: The value if neither the user nor the checkpoint gives one; the
        field's default is then None.
      per_worker: Whether the workers of a run may have different values, as
        for paths, device names and options that do not affect the results.
      recorded: Whether a model records the value, in the field of `Pretrained`
        with this name. Runs that use the model have this value by default.
      decides: How the value affects a fine-tuning. "model": it changes the
        trained weights, and is the same in all trainings of a run. "setting": a
        search varies it. "seed": several trainings vary it. "score": it only
        selects the best model. Empty: none of these.
      needs: The option without which this one has no effect: "teacher", or with
        a value, "task_name=custom". Options that the job lacks are not needed.
    """

    help: str
    choices: tuple[str, ...] = ()
    at_least: float | None = None
    at_most: float | None = None
    below: float | None = None
    fallback: Any = None
    per_worker: bool = False
    recorded: bool = False
    decides: str = ""
    needs: str = ""

    @property
    def range(self) -> str:
        """A sentence such as "From 0 to 1."; empty without limits."""
        if self.below is not None:
            return f"At least {self.at_least:,} and below {self.below:,}."
        if self.at_least is None:
            return f"At most {self.at_most:,}." if self.at_most else ""
        if self.at_most is None:
            return f"At least {self.at_least:,}."
        return f"From {self.at_least:,} to {self.at_most:,}."


def option(
    help: str,
    *,
    default: Any = dataclasses.MISSING,
    fallback: Any = None,
    **declaration: Any,
) -> Any:
    """Declares a field of an `Options` dataclass.

    Without a `default` the option is required. With a `fallback` its default is
    None, which means the checkpoint's value or, without one, the fallback.
    `declaration` has other attributes of `Option`.
    """
    if fallback is not None:
        default = None
    declared_option = Option(help, fallback=fallback, **declaration)
    return dataclasses.field(
        default=default, metadata={"option": declared_option}
    )


def local_option(help: str, **declaration: Any) -> Any:
    """Declares an option, by default None, with `per_worker`; see `Option`."""
    return option(help, default=None, per_worker=True, **declaration)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """The base class of all jobs' options, which checks each value.

    Raises:
      OptionError: A value has the wrong type, is out of range or is not one of
        the choices.
    """

    def __post_init__(self) -> None:
        for name, (kind, declaration) in declared(type(self)).items():
            value = _converted(getattr(self, name), kind)
            object.__setattr__(self, name, value)
            default = self.__dataclass_fields__[name].default
            if value is None and default is None:
                continue
            if fault := _fault(value, kind, declaration):
                raise OptionError(f"`{name}` {fault}")

    def check(self) -> None:
        """Compares options with each other and looks for the files they name.

        The command line calls this before it imports a job. The job calls it
        again, for Python code that calls the job.

        Raises:
          InputError: Options contradict each other, or a file is missing.
        """

    def shared(self) -> dict[str, Any]:
        """Returns the options that all workers must share, by name.

        The names are in backquotes, as in messages.
        """
        return {
            f"`{name}`": getattr(self, name)
            for name, (_, declaration) in declared(type(self)).items()
            if not declaration.per_worker
        }

    def require_effect(self, other: str) -> None:
        """Raises InputError for an option that was passed but has no effect.

        Args:
          other: The option that the passed one needs; see `Option.needs`.
        """
        for name, needs in self.without_effect().items():
            if needs.partition("=")[0] != other:
                continue
            fault = f"without `{other}`"
            if needs != other:
                fault = f"with `{other}={getattr(self, other)}`"
            raise InputError(
                f"`{name}` has no effect {fault}. Leave it out, or pass "
                f"`{needs}`."
            )

    def without_effect(self) -> dict[str, str]:
        """Maps each passed option that has no effect to what it needs."""
        return {
            name: declaration.needs
            for name, (_, declaration) in declared(type(self)).items()
            if getattr(self, name) != self.__dataclass_fields__[name].default
            and declaration.needs
            and not self._is_met(declaration.needs)
        }

    def _is_met(self, need: str) -> bool:
        name, _, wanted = need.partition("=")
        if name not in self.__dataclass_fields__:
            return True
        value = getattr(self, name)
        return value.lower() == wanted if wanted else value not in (None, False)

    def with_fallbacks(self) -> "typing.Self":
        """Returns a copy in which fallbacks are filled in."""
        return dataclasses.replace(
            self,
            **{
                name: declaration.fallback
                for name, (_, declaration) in declared(type(self)).items()
                if declaration.fallback is not None
                and getattr(self, name) is None
            },
        )


def declared(config: type[Options]) -> dict[str, tuple[type, Option]]:
    """Returns the type (without None) and the declaration of each option."""
    hints = typing.get_type_hints(config)
    return {
        field.name: (_plain_type(hints[field.name]), field.metadata["option"])
        for field in dataclasses.fields(config)
        if "option" in field.metadata
    }


def named(config: type[Options], **declaration: Any) -> list[str]:
    """Returns the names of the options whose `Option` has given attributes.

    They are in the order of the fields. For example the recorded ones:
    `named(ClassifierConfig, recorded=True)`.
    """
    return [
        name
        for name, (_, candidate) in declared(config).items()
        if all(getattr(candidate, key) == v for key, v in declaration.items())
    ]


def required(config: type[Options]) -> list[str]:
    """Returns the names of the options that have no default."""
    return [
        field.name
        for field in dataclasses.fields(config)
        if field.default is dataclasses.MISSING
    ]


def _plain_type(hint: Any) -> type:
    """`str | None` -> str, `tuple[str, ...] | None` -> tuple."""
    if isinstance(hint, types.UnionType):
        [hint] = {*typing.get_args(hint)} - {types.NoneType}
    return typing.get_origin(hint) or hint


def _converted(value: Any, kind: type) -> Any:
    """Converts what Python code may naturally pass: paths, lists, ints."""
    if kind is str and isinstance(value, os.PathLike):
        return os.fspath(value)
    if (
        kind is tuple
        and isinstance(value, Sequence)
        and not isinstance(value, str)
    ):
        return tuple(map(str, value))
    if isinstance(value, bool):
        return value
    if kind is float and isinstance(value, numbers.Real):
        return float(value)
    if kind is int and isinstance(value, numbers.Integral):
        return int(value)
    return value


def _fault(value: Any, kind: Any, declaration: Option) -> str | None:
    """Returns what is wrong with a value, or None."""
    if type(value) is not kind:
        return f"must be {_NAMES[kind]}; got {value!r}"
    if declaration.choices and value not in declaration.choices:
        choices = listed(declaration.choices, last="or")
        return f"must be one of {choices}; got {value!r}"
    if kind is str and "tensorflow" in sys.modules and not files.is_utf8(value):
        # TensorFlow's functions only take file names in UTF-8.
        return f"must be UTF-8; got {value!r}"
    if declaration.below is not None and value >= declaration.below:
        return f"must be below {declaration.below:,}; got {value}"
    return number_fault(value, declaration.at_least, declaration.at_most)


def number_fault(
    value: Any, at_least: float | None = None, at_most: float | None = None
) -> str | None:
    """Returns what is wrong with a number, or None; other values are fine."""
    if type(value) is float and not math.isfinite(value):
        return f"must be a finite number; got {value}"
    if type(value) is int:
        at_least = -LARGEST_INTEGER if at_least is None else at_least
        at_most = LARGEST_INTEGER if at_most is None else at_most
    elif type(value) is not float:
        return None
    if at_least is not None and value < at_least:
        return f"must be at least {at_least:,}; got {value}"
    if at_most is not None and value > at_most:
        return f"must be at most {at_most:,}; got {value}"
    return None
