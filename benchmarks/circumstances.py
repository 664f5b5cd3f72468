"""What the numbers of a section depend on: lines of its list."""

from collections.abc import Callable, Iterator, Mapping

from timed import MOST_OF_OTHERS

ROUNDS = (
    "- Medians of rounds (least to most) in which the sides take turns; of "
    "those during which other programs took no more than "
    f"{MOST_OF_OTHERS:.0%} of a core, where there are such"
)


def machine_line(
    machine: Mapping[str, str], num_threads: int | None = None
) -> str:
    """The machine.

    Args:
      machine: See `measured.machine`.
      num_threads: Cores for each side, if that is not for the cases to say.
    """
    cores = f"{machine['cores']} cores"
    if num_threads is not None:
        cores = f"{num_threads} of {cores} for each side"
    return (
        f"- {machine['processor']}; {cores}; {machine['memory']}; "
        f"{machine['system']}"
    )


def sides_lines(
    versions: Mapping[str, Mapping[str, str]],
    left_out: Mapping[str, str],
    title_of: Callable[[str], str],
) -> Iterator[str]:
    """The packages, each of them once, and what is missing.

    Args:
      versions: Side -> package -> version.
      left_out: Side -> why it was not measured.
      title_of: From a side to what readers call it.
    """
    packages = {
        f"{name} {version}": None
        for of_a_side in versions.values()
        for name, version in of_a_side.items()
    }
    yield f"- {', '.join(packages)}"
    for side, reason in left_out.items():
        yield f"- Not measured: {title_of(side)}: {reason}"
