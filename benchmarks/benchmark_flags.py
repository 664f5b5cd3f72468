"""Flags that several benchmarks have, each defined by those that have it."""

import os
from collections.abc import Collection, Sequence

import peer_environment
from absl import flags

# --help shows them among those of the program.
flags.disclaim_key_flags()


def define_rounds(default: int) -> None:
    flags.DEFINE_integer(
        "rounds", default, "How often each side is timed.", lower_bound=1
    )


def define_output() -> None:
    flags.DEFINE_string("output", None, "JSON file of the results.")


def define_num_threads() -> None:
    flags.DEFINE_integer(
        "num_threads", len(os.sched_getaffinity(0)), "Cores for each side."
    )


def define_some(
    name: str,
    known: Collection[str],
    default: Sequence[str] | None = None,
    title: str = "",
) -> None:
    """A comma list of some words.

    Args:
      name: Of the flag.
      known: The words.
      default: All of them unless given.
      title: What they are, for --help.
    """
    words = ", ".join(known)
    flags.DEFINE_list(name, list(default or known), f"{title}Some of {words}.")
    flags.register_validator(
        name,
        lambda given: bool(given) and set(given) <= set(known),
        f"expected a comma list of some of {words}",
    )


def define_interpreter(name: str, peer: str) -> None:
    """A flag for those who have a peer's environment already."""
    flags.DEFINE_string(
        name, None, f"Interpreter with what peers/{peer}.txt lists."
    )


def interpreter(name: str, peer: str, on_top: bool = False) -> str:
    """What the flag names, or that of the environment that we make.

    Args:
      name: Of the flag.
      peer: A list of packages in benchmarks/peers.
      on_top: See `peer_environment.python_of`.
    """
    return flags.FLAGS[name].value or peer_environment.python_of(peer, on_top)
