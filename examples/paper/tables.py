"""Tables of the paper with our numbers beside the paper's, and comparisons."""

import csv
import io
import json
import math
import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from runs import PYTHON, Folder, Run, in_order
from scipy import stats

from bert_tf.base import files
from bert_tf.errors import InputError


class Table(NamedTuple):
    """A table of the paper.

    Attributes:
      name: The name of its files.
      title: The title, with the paper's number.
      headings: The headings of the columns that describe a row.
      rows: Row -> the cells of those columns.
      paper: Column -> the paper's numbers, in the order of the rows.
      claims: The paper's comparisons: the names of two rows, and the columns
        to compare; no columns means all.
      note: A note for the reader.
    """

    name: str
    title: str
    headings: Sequence[str]
    rows: Mapping[str, Sequence[object]]
    paper: Mapping[str, Sequence[float]]
    claims: Sequence[tuple[str, ...]]
    note: str = ""

    def paper_of(self, column: str) -> dict[str, float]:
        """Returns the paper's number for each row, if it has the column."""
        if column not in self.paper:
            return {}
        return dict(zip(self.rows, self.paper[column], strict=True))


class Goal(NamedTuple):
    """A run, the cell of its score, and what reads the score from results.

    `model` is the number of the pre-training run, `seed` of the fine-tuning.
    """

    row: str
    column: str
    model: int
    seed: int
    run: Run
    read: Callable[[Mapping[str, float]], float]


# Row and column -> number of the pre-training -> scores of its fine-tunings.
Scores = dict[tuple[str, str], dict[int, list[float]]]
# Row and column -> the numbers that tests compare; columns in their order.
Cells = dict[tuple[str, str], list[float]]


def cells_of(scores: Scores) -> Cells:
    """Returns a mean for each pre-training, or the scores of a single one."""
    cells = {}
    for place, models in scores.items():
        known = [values for values in models.values() if values]
        if len(models) > 1:
            known = [[float(np.mean(values))] for values in known]
        cells[place] = [score for values in known for score in values]
    return cells


def fill(
    table: Table, goals: Sequence[Goal], output_dir: str, full: bool
) -> None:
    """Executes the runs; rewrites the table after each one.

    The table is written as .md, the same numbers as .csv, every run as .json.

    Args:
      table: The table.
      goals: The runs of its cells.
      output_dir: The folder of tables and runs.
      full: Whether to print the commands instead.

    Raises:
      InputError: There is nothing to measure, a flag of --also is invalid, or a
        run has failed.
    """
    if not goals:
        raise InputError(
            "No task has data. Pass the folder of at least one task."
        )
    folder = Folder(output_dir)
    runs = in_order(goal.run for goal in goals)
    print(f"# {table.title}" if full else table.title)
    if full:
        for run in runs:
            print(folder.shown(run))
        return
    for run in runs:
        folder.check(run)
    path = os.path.join(output_dir, table.name)
    scores: Scores = {}
    for goal in goals:
        place = scores.setdefault((goal.row, goal.column), {})
        place.setdefault(goal.model, [])
    minutes, count = 0.0, 0
    singles: list[dict] = []
    for run in folder.do(goal.run for goal in goals):
        seconds = folder.record(run)["seconds"]
        minutes, count = minutes + seconds / 60, count + 1
        for goal in goals:
            if goal.run.label == run.label:
                score = goal.read(folder.results(run))
                scores[goal.row, goal.column][goal.model].append(score)
                single = {
                    "row": goal.row,
                    "column": goal.column,
                    "model": goal.model,
                    "seed": goal.seed,
                    "score": score if math.isfinite(score) else None,
                    "seconds": seconds,
                    "run": run.label,
                    "command": folder.command(run),
                }
                singles.append(single)
        known = cells_of(scores)
        took = f"{count} runs, {minutes:.1f} minutes, by"
        command = shlex.join([PYTHON, *sys.argv])
        text = f"{markdown(table, known)}\n{took}\n\n    {command}\n"
        files.write_text(f"{path}.md", text)
        files.write_text(f"{path}.csv", comma_separated(table, known))
        files.write_text(f"{path}.json", json.dumps(singles, indent=2) + "\n")
    print(f"\n{text}\nIt is in {path}.md.")
    draw(table, known, f"{path}.png")


def columns_of(known: Cells) -> list[str]:
    return list(dict.fromkeys(column for _, column in known))


def markdown(table: Table, known: Cells) -> str:
    """Returns the table, and below it the paper's claims and our results."""
    columns = columns_of(known)
    titles = [*table.headings]
    for column in columns:
        titles += [column, "paper"]
    lines = [titles, ["---"] * len(titles)]
    for row, head in table.rows.items():
        line = [*head]
        for column in columns:
            paper = table.paper_of(column).get(row, "")
            line += [cell(known.get((row, column), [])), paper]
        lines.append(line)
    text = "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)
    counts = sorted({len(values) for values in known.values() if values})
    note = "Means and standard deviations where there are several seeds"
    seeds = f"{note}: {' or '.join(map(str, counts))} a cell. {table.note}"
    found = [*directions(table, known), *ranges(table, known)]
    below = "".join(f"- {line}\n" for line in found)
    return f"{table.title}\n\n{text}\n{seeds.strip()}\n\n{below}"


def comma_separated(table: Table, known: Cells) -> str:
    """Returns the same numbers as CSV, with four columns for each column."""
    columns = columns_of(known)
    kinds = ("", "_deviation", "_seeds", "_paper")
    titles = [column + kind for column in columns for kind in kinds]
    lines = [[*table.headings, *titles]]
    for row, head in table.rows.items():
        line = [*head]
        for column in columns:
            values = known.get((row, column), [])
            mean = float(np.mean(values)) if values else None
            spread = float(np.std(values, ddof=1)) if values[1:] else None
            paper = table.paper_of(column).get(row)
            line += [mean, spread, len(values), paper]
        lines.append(line)
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    return text.getvalue()


def cell(values: Sequence[float]) -> str:
    """Returns the mean of scores, and their standard deviation."""
    if len(values) < 2:
        return "".join(map(number, values))
    return f"{number(np.mean(values))} ± {number(np.std(values, ddof=1))}"


def number(value: float) -> str:
    """Returns a number with the digits of the paper: 84.4, 3.99."""
    return f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}"


def directions(table: Table, known: Cells) -> list[str]:
    """Returns a line per claim: whether our rows compare as the paper's do."""
    lines = []
    for first, second, *columns in table.claims:
        for column in columns or columns_of(known):
            theirs = table.paper_of(column)
            ours = [known.get((row, column)) for row in (first, second)]
            papers = [theirs[first], theirs[second]] if theirs else None
            if all(ours):
                found = verdict(papers, ours)
                lines.append(f"{column}: {first} against {second}: {found}")
    return lines


def ranges(table: Table, known: Cells) -> list[str]:
    """Returns a line per column: the range of its rows, here and there."""
    lines = []
    for column in columns_of(known):
        theirs = table.paper_of(column).values()
        ours = [known.get((row, column)) for row in table.rows]
        if theirs and all(ours):
            means = [np.mean(values) for values in ours]
            lines.append(
                f"{column}, lowest to highest row: paper: "
                f"{number(min(theirs))} to {number(max(theirs))}; "
                f"here: {number(min(means))} to {number(max(means))}"
            )
    return lines


def verdict(
    papers: Sequence[float] | None, ours: Sequence[Sequence[float]]
) -> str:
    """Compares two rows, here and, if it has the column, in the paper.

    Welch's t-test over the seeds tests whether the difference is significant.
    """
    first, second = map(np.mean, ours)
    here = _sign(first, second)
    there = _sign(*papers) if papers else None
    unlearned = min(abs(first), abs(second)) < 0.005  # Shown as 0.00.
    if here == "?":
        found = "no number to compare"
    elif unlearned:
        found = "a model has learned nothing"
    elif there == "=":
        found = "the paper has no difference"
    elif here == "=":
        found = "no difference here"
    elif there is None:
        found = "not in the paper"
    else:
        found = "same direction" if there == here else "the other direction"
    chance = _chance(*ours) if here in "<>" and not unlearned else ""
    before = f"paper: {papers[0]} {there} {papers[1]}; " if papers else ""
    return (
        f"{before}here: {number(first)} {here} {number(second)} "
        f"({found}{chance})"
    )


def _chance(first: Sequence[float], second: Sequence[float]) -> str:
    """Describes whether the difference of two means is significant."""
    if min(len(first), len(second)) < 2:
        return "; one seed, not tested"
    if len({*first}) == len({*second}) == 1:
        return "; each seed gave the same"
    # Not `ttest_ind`, which warns if all scores are the same.
    moments = [
        moment
        for values in (first, second)
        for moment in (np.mean(values), np.std(values, ddof=1), len(values))
    ]
    p = stats.ttest_ind_from_stats(*moments, equal_var=False).pvalue
    doubt = "" if p < 0.05 else ", not significant"
    return f"; p = {p:.2g}{doubt}"


def _sign(first: float, second: float) -> str:
    """Compares two numbers, rounded as they are shown."""
    if math.isnan(first) or math.isnan(second):
        return "?"
    if number(first) == number(second):
        return "="
    return ">" if first > second else "<"


def draw(table: Table, known: Cells, path: str) -> None:
    """Draws a panel for each column; prints a message without matplotlib.

    The paper's numbers have their own scale.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print("No plot without matplotlib: pip install '.[visualize]'.")
        return
    columns, rows = columns_of(known), [*table.rows]
    size = (2.2 + 2.4 * len(columns), 1.8 + 0.35 * len(rows))
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(1, len(columns), sharey=True, squeeze=False)[0]
    names = [" ".join(map(str, head)) for head in table.rows.values()]
    places = range(len(rows))
    panels[0].set_yticks(places, names, fontsize=8)
    panels[0].invert_yaxis()
    panels[0].set_ylabel(" ".join(table.headings), fontsize=8)
    for axes, column in zip(panels, columns, strict=True):
        ours = [known.get((row, column)) or [math.nan] for row in rows]
        means = [np.mean(values) for values in ours]
        spread = [np.std(v, ddof=1) if len(v) > 1 else 0.0 for v in ours]
        axes.errorbar(means, places, xerr=spread, fmt="o", capsize=3)
        _label(axes, f"{column}: here, with deviation", "C0")
        axes.grid(alpha=0.3)
        if theirs := table.paper_of(column):
            above = axes.twiny()
            above.plot([*theirs.values()], places, "s", mfc="none", color="C1")
            _label(above, f"{column}: the paper", "C1")
    with files.atomic_writer(path) as file:
        figure.savefig(file, dpi=120, format="png")


def _label(axes, text: str, color: str) -> None:
    axes.set_xlabel(text, fontsize=8, color=color)
    axes.tick_params(axis="x", colors=color, labelsize=8)
