"""The section about serving in docs/performance.md, from its file of results.

    python benchmarks/serving_section.py build/serving.json docs/performance.md

writes it there; without a page it is printed.
"""

import pathlib
import sys
from collections.abc import Iterator

from circumstances import ROUNDS, machine_line, sides_lines
from pages import publish, table
from serving_comparison import MANY, ONE, Comparison, Round
from serving_sides import SIDES
from timed import Spread

MILLISECONDS = 1000


def line(turn: Round) -> str:
    """A round, as it is told when it has ended."""
    return (
        f"{name_of(turn.side)}, batches of {turn.batch_size}: "
        f"{turn.texts_per_second:,.0f} texts/s, "
        f"{MILLISECONDS * turn.median_seconds:.2f} ms a batch "
        f"(p90 {MILLISECONDS * turn.p90_seconds:.2f} ms); "
        f"{turn.cpu_seconds:.1f} s of CPU, others "
        f"{turn.other_cpu_seconds:.1f} s"
    )


def section(comparison: Comparison) -> str:
    """Everything that was measured, in Markdown."""
    parts = [
        ["## Serving: strings in, labels out"],
        ["```", comparison.command, "```"],
        list(circumstances(comparison)),
        table(spreads(comparison)),
        table(ratios(comparison)) if has_ratios(comparison) else [],
    ]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def circumstances(comparison: Comparison) -> Iterator[str]:
    """A list of what the numbers depend on."""
    settings = comparison.settings
    yield machine_line(comparison.machine, settings.num_threads)
    yield (
        f"- {last_parts(settings.init_checkpoint)} with a head of random "
        f"weights; the first {settings.num_texts} texts of "
        f"{last_parts(settings.data_file)}, at most {settings.max_seq_length} "
        "pieces, padded to the longest of a batch"
    )
    yield ROUNDS
    yield (
        "- Before that all texts were answered in both sizes of batches; "
        "probabilities and labels are compared with those of "
        f"{name_of(comparison.sides[0])}"
    )
    yield from sides_lines(comparison.versions, comparison.left_out, name_of)


def last_parts(path: str) -> str:
    return "/".join(pathlib.Path(path).parts[-2:])


def name_of(side: str) -> str:
    return f"{SIDES[side].title} ({SIDES[side].precision})"


def spreads(comparison: Comparison) -> Iterator[list[str]]:
    """A row for each side."""
    yield [
        "",
        "precision",
        "rounds",
        f"texts/s, batches of {MANY}",
        f"ms, batches of {ONE}",
        f"90 % of batches of {ONE}, ms",
        "largest difference of a probability",
        "other labels",
    ]
    for side in comparison.sides:
        agreement = comparison.agreement[side]
        yield [
            SIDES[side].title,
            SIDES[side].precision,
            count_of(comparison, side),
            show(comparison.spread(side, MANY, "texts_per_second"), 1, 0),
            show(
                comparison.spread(side, ONE, "median_seconds"), MILLISECONDS, 2
            ),
            show(comparison.spread(side, ONE, "p90_seconds"), MILLISECONDS, 2),
            f"{agreement.largest_difference:.1g}",
            str(agreement.other_labels),
        ]


def count_of(comparison: Comparison, side: str) -> str:
    """How many rounds of a size there are, and how many of all are timed."""
    rounds = comparison.of(side, MANY) + comparison.of(side, ONE)
    timed = sum(turn.is_timed for turn in rounds)
    return f"2 x {len(rounds) // 2} ({timed} timed)"


def show(spread: Spread, scale: int, digits: int) -> str:
    median, low, high = (
        f"{scale * number:,.{digits}f}"
        for number in (spread.median, spread.low, spread.high)
    )
    return median if low == high else f"{median} ({low} to {high})"


def has_ratios(comparison: Comparison) -> bool:
    return len(list(ratios(comparison))) > 1


def ratios(comparison: Comparison) -> Iterator[list[str]]:
    """A row for each peer: how many times as fast ours of its precision is."""
    yield [
        "bert_tf is times as fast as",
        "precision",
        f"batches of {MANY}",
        f"batches of {ONE}",
        "aim",
    ]
    ours = {
        SIDES[side].precision: side
        for side in comparison.sides
        if SIDES[side].peer is None
    }
    for side in comparison.sides:
        peer = SIDES[side]
        if peer.peer is None or peer.precision not in ours:
            continue
        mine = ours[peer.precision]
        yield [
            peer.title,
            peer.precision,
            *(
                f"{comparison.times_as_fast(mine, side, size):.2f}"
                for size in (MANY, ONE)
            ),
            f"{peer.aim:.1f}",
        ]


def main(results: str, page: str | None = None) -> None:
    publish(section(Comparison.read(pathlib.Path(results))), page, "serving")


if __name__ == "__main__":
    main(*sys.argv[1:])
