"""Tables of the paper with our numbers beside its own, and their comparison."""

import csv
import io
import json
import math
import os
import shlex
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from runs import PYTHON, Folder, Run, in_order
from scipy import stats

from bert_tf import files
from bert_tf.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Column(NamedTuple):
    """A column.

    Attributes:
      title: The paper's heading.
      read: Returns the number, given the results of a script.
      paper: Row -> the number of the paper, if it has one.
    """

    title: str
    read: Callable[[Mapping[str, float]], float]
    paper: Mapping[str, float]


def beside_paper(
    title: str,
    read: Callable[[Mapping[str, float]], float],
    rows: Iterable[str],
    paper: Mapping[str, Sequence[float]],
) -> Column:
    """Returns a column beside the paper's, if it has one with that title."""
    theirs = (
        dict(zip(rows, paper[title], strict=True)) if title in paper else {}
    )
    return Column(title, read, theirs)


class Claim(NamedTuple):
    """A statement of the paper about two rows.

    Attributes:
      first: The name of a row.
      second: The name of another row.
      columns: The headings of the columns to compare; all if empty.
    """

    first: str
    second: str
    columns: Sequence[str] = ()


class Table(NamedTuple):
    """A table of the paper.

    Attributes:
      name: The name of its files.
      title: The title, with the paper's number.
      headings: The headings of the columns that describe a row.
      rows: Row -> the cells of those columns.
      columns: What is measured.
      claims: What the paper says of the rows.
      note: A note for the reader.
    """

    name: str
    title: str
    headings: Sequence[str]
    rows: Mapping[str, Sequence[object]]
    columns: Sequence[Column]
    claims: Sequence[Claim]
    note: str = ""


class Goal(NamedTuple):
    """A run whose score goes into a cell."""

    row: str
    column: str
    run: Run
    seed: int | None = None


class Score(NamedTuple):
    """The score of a goal."""

    goal: Goal
    value: float
    seconds: float


class Cell(NamedTuple):
    """The scores of all seeds."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """The mean; NaN if a score is NaN."""
        return math.fsum(self.values) / len(self.values)

    @property
    def deviation(self) -> float | None:
        """The standard deviation; None for a single score."""
        if len(self.values) < 2:
            return None
        if not math.isfinite(self.mean):
            return math.nan
        return statistics.stdev(self.values)

    def __str__(self) -> str:
        if self.deviation is None:
            return number(self.mean)
        return f"{number(self.mean)} ± {number(self.deviation)}"


Cells = Mapping[tuple[str, str], Cell]


def fill(
    table: Table, goals: Sequence[Goal], output_dir: str, full: bool
) -> None:
    """Does the runs; rewrites the table after each one.

    Args:
      table: The table.
      goals: The runs of its cells.
      output_dir: The folder of tables and runs.
      full: Whether to print the commands instead.

    Raises:
      InputError: There is nothing to measure, or a run has failed.
    """
    if not goals:
        raise InputError(
            "The data of no task was found. Name the folder of one task or "
            "more."
        )
    folder = Folder(output_dir)
    goal_runs = [goal.run for goal in goals]
    if full:
        print(f"# {table.title}")
        for run in in_order(goal_runs):
            print(folder.shown(run))
        return
    print(table.title)
    done: set[str] = set()
    for run in folder.do(goal_runs):
        done.add(run.label)
        if run in goal_runs:
            found = [goal for goal in goals if goal.run.label in done]
            write(table, folder, scores(table, folder, found))
    path = os.path.join(folder.path, table.name)
    print(f"\n{files.read_text(f'{path}.md')}\nIt is in {path}.md.")
    if not draw(table, cells(scores(table, folder, goals)), f"{path}.png"):
        print('There is no plot: pip install "bert-tf[visualize]".')


def scores(table: Table, folder: Folder, goals: Iterable[Goal]) -> list[Score]:
    """Returns the scores of runs that are done."""
    read = {column.title: column.read for column in table.columns}
    return [
        Score(
            goal,
            read[goal.column](folder.results(goal.run)),
            folder.record(goal.run)["seconds"],
        )
        for goal in goals
    ]


def cells(found: Iterable[Score]) -> Cells:
    """Returns the scores by row and column."""
    values: dict[tuple[str, str], list[float]] = {}
    for goal, value, _ in found:
        values.setdefault((goal.row, goal.column), []).append(value)
    return {place: Cell(tuple(some)) for place, some in values.items()}


def write(table: Table, folder: Folder, found: Sequence[Score]) -> None:
    """Writes what is known so far: .md, .csv, and .json with every run."""
    path = os.path.join(folder.path, table.name)
    known = cells(found)
    runs = in_order(goal.run for goal, _, _ in found)
    seconds = sum(folder.record(run)["seconds"] for run in runs)
    text = markdown(table, known)
    took = f"{len(runs)} runs, {seconds / 60:.1f} minutes, by"
    command = shlex.join([PYTHON, *sys.argv])
    files.write_text(f"{path}.md", f"{text}\n{took}\n\n    {command}\n")
    files.write_text(f"{path}.csv", comma_separated(table, known))
    single = [
        {
            "row": goal.row,
            "column": goal.column,
            "seed": goal.seed,
            "score": value if math.isfinite(value) else None,
            "seconds": seconds,
            "run": goal.run.label,
            "command": folder.command(goal.run),
        }
        for goal, value, seconds in found
    ]
    files.write_text(f"{path}.json", json.dumps(single, indent=2) + "\n")


def markdown(table: Table, known: Cells) -> str:
    """Returns the table, and below it the claims of the paper and ours."""
    titles = [*table.headings]
    for column in table.columns:
        titles += [column.title, "paper"]
    lines = [titles, ["---"] * len(titles)]
    for row, head in table.rows.items():
        line = [*head]
        for column in table.columns:
            paper = column.paper.get(row)
            line += [known.get((row, column.title), ""), paper or ""]
        lines.append(line)
    text = "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)
    counts = sorted({len(cell.values) for cell in known.values()})
    note = "Means and standard deviations where there are several seeds"
    seeds = f"{note}: {' or '.join(map(str, counts))} a cell. {table.note}"
    told = [*directions(table, known), *ranges(table, known)]
    said = "".join(f"- {line}\n" for line in told)
    return f"{table.title}\n\n{text}\n{seeds.strip()}\n\n{said}"


def comma_separated(table: Table, known: Cells) -> str:
    """Returns the same numbers as CSV, with four columns for each column."""
    titles = [*table.headings]
    for column in table.columns:
        kinds = ("", "_deviation", "_seeds", "_paper")
        titles += [column.title + kind for kind in kinds]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(titles)
    for row, head in table.rows.items():
        line = [*head]
        for column in table.columns:
            cell = known.get((row, column.title))
            ours = (
                [cell.mean, cell.deviation, len(cell.values)]
                if cell
                else [None, None, 0]
            )
            line += [*ours, column.paper.get(row)]
        writer.writerow(line)
    return text.getvalue()


def directions(table: Table, known: Cells) -> list[str]:
    """Returns a line per claim: whether our rows compare as the paper's do."""
    lines = []
    for claim in table.claims:
        for column in table.columns:
            if claim.columns and column.title not in claim.columns:
                continue
            papers = [column.paper.get(row) for row in claim[:2]]
            ours = [known.get((row, column.title)) for row in claim[:2]]
            if None not in papers and None not in ours:
                names = f"{claim.first} against {claim.second}"
                lines.append(
                    f"{column.title}: {names}: {verdict(papers, ours)}"
                )
    return lines


def ranges(table: Table, known: Cells) -> list[str]:
    """Returns a line per column: the range of its rows, here and there."""
    lines = []
    for column in table.columns:
        ours = [known.get((row, column.title)) for row in column.paper]
        if len(ours) > 1 and None not in ours:
            theirs = _range(column.paper.values())
            here = _range(cell.mean for cell in ours)
            lines.append(
                f"{column.title}, lowest to highest row: paper: {theirs}; "
                f"here: {here}"
            )
    return lines


def _range(values: Iterable[float]) -> str:
    shown = [*values]
    return f"{number(min(shown))} to {number(max(shown))}"


def verdict(papers: Sequence[float], ours: Sequence[Cell]) -> str:
    """Compares two rows, here and in the paper.

    Welch's t-test over the seeds says whether chance explains the difference.
    """
    first, second = (cell.mean for cell in ours)
    there, here = _sign(*papers), _sign(first, second)
    if math.isnan(first) or math.isnan(second):
        found = "no number to compare"
    elif there == "=":
        found = "the paper has no difference"
    elif here == "=":
        found = "no difference here"
    else:
        found = "same direction" if there == here else "the other direction"
    return (
        f"paper: {papers[0]} {there} {papers[1]}; "
        f"here: {number(first)} {here} {number(second)} "
        f"({found}{_chance(*ours) if here in '<>' else ''})"
    )


def _chance(first: Cell, second: Cell) -> str:
    """Returns how likely chance is for two means that differ."""
    if first.deviation is None or second.deviation is None:
        return "; one seed, whose chance is not known"
    if first.deviation == second.deviation == 0:
        return "; each seed gave the same"
    test = stats.ttest_ind_from_stats(
        *(first.mean, first.deviation, len(first.values)),
        *(second.mean, second.deviation, len(second.values)),
        equal_var=False,
    )
    doubt = "" if test.pvalue < 0.05 else ": may be the seeds' chance"
    return f"; p = {test.pvalue:.2g}{doubt}"


def _sign(first: float, second: float) -> str:
    """Compares two numbers, rounded as they are shown."""
    if math.isnan(first) or math.isnan(second):
        return "?"
    if number(first) == number(second):
        return "="
    return ">" if first > second else "<"


def number(value: float) -> str:
    """Returns a number with the digits of the paper: 84.4, 3.99."""
    return f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}"


def draw(table: Table, known: Cells, path: str) -> bool:
    """Draws a panel for each column; returns False without matplotlib.

    Args:
      table: The table.
      known: Our numbers.
      path: The PNG file.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    count = len(table.columns)
    size = (2.2 + 2.4 * count, 1.8 + 0.35 * len(table.rows))
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(1, count, sharey=True, squeeze=False)[0]
    names = [" ".join(map(str, head)) for head in table.rows.values()]
    panels[0].set_yticks(range(len(names)), names, fontsize=8)
    panels[0].invert_yaxis()
    panels[0].set_ylabel(" ".join(table.headings), fontsize=8)
    for axes, column in zip(panels, table.columns, strict=True):
        ours = [known.get((row, column.title)) for row in table.rows]
        draw_column(axes, column, ours, [*table.rows])
    with files.atomic_writer(path) as file:
        figure.savefig(file, dpi=120, format="png")
    return True


def draw_column(
    axes: "Axes",
    column: Column,
    ours: Sequence[Cell | None],
    rows: Sequence[str],
) -> None:
    """Draws our numbers, and the paper's on a scale of its own.

    Args:
      axes: The panel.
      column: The column.
      ours: The cells, row by row; None for one that is not known.
      rows: The names of the rows.
    """
    places = [*range(len(rows))]
    axes.errorbar(
        [cell.mean if cell else math.nan for cell in ours],
        places,
        xerr=[(cell and cell.deviation) or 0 for cell in ours],
        fmt="o",
        capsize=3,
    )
    axes.set_xlabel(f"{column.title}: here, with deviation", fontsize=8)
    axes.tick_params(axis="x", colors="C0", labelsize=8)
    axes.xaxis.label.set_color("C0")
    axes.grid(alpha=0.3)
    if column.paper:
        above = axes.twiny()
        theirs = [column.paper.get(row, math.nan) for row in rows]
        above.plot(theirs, places, "s", mfc="none", color="C1")
        above.set_xlabel(f"{column.title}: the paper", fontsize=8)
        above.tick_params(axis="x", colors="C1", labelsize=8)
        above.xaxis.label.set_color("C1")
