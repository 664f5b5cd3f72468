"""What the benchmark of fine-tuning sums up and writes into docs/results.md."""

import pytest
from checkout import ROOT


@pytest.fixture(scope="module")
def comparison(benchmarks):
    return benchmarks("comparison")


@pytest.fixture(scope="module")
def write_results(benchmarks):
    return benchmarks("write_results")


@pytest.fixture
def settings(comparison):
    return comparison.Settings("mrpc", "/data/MRPC", "/weights/small/model")


@pytest.fixture
def run(comparison):
    def make(side, seed, accuracy, seconds, **more):
        facts = {
            "scores": {"accuracy": accuracy, "f1": accuracy + 0.05},
            "eval_loss": 0.5,
            "global_step": 343,
            "train_seconds": seconds,
            "seconds": seconds + 31,
            "cpu_seconds": 2 * seconds,
            "other_cpu_seconds": 0.6,
            "peak_bytes": 3 * 2**30,
        }
        return comparison.Run(side, seed, **facts | more)

    return make


@pytest.fixture
def three_seeds(comparison, settings, run):
    """Ours takes half the time and scores within the others' spread."""
    runs = []
    for seed, (ours, theirs) in enumerate(
        [(0.85, 0.84), (0.86, 0.87), (0.84, 0.80)], start=1
    ):
        runs.append(run("huggingface", seed, theirs, 200.0 + seed))
        runs.append(run("ours", seed, ours, 100.0 + seed))
    return comparison.Comparison(
        "python benchmarks/fine_tuning.py --task_name=mrpc",
        settings,
        {
            "processor": "A processor, AVX2",
            "cores": "2",
            "memory": "7 GiB",
            "system": "Linux 6.1",
        },
        {"ours": {"keras": "3.15"}, "huggingface": {"torch": "2.13"}},
        runs,
        comparison.CrossCheck(1, {"eval_loss": 0.25}, {"eval_loss": 0.250001}),
    )


def test_a_file_of_results_there_and_back(comparison, three_seeds, tmp_path):
    path = tmp_path / "new" / "mrpc.json"
    three_seeds.write(path)
    assert comparison.Comparison.read(path) == three_seeds
    three_seeds.cross_check = None
    three_seeds.write(path)
    assert comparison.Comparison.read(path).cross_check is None


def test_spread(benchmarks):
    timed = benchmarks("timed")
    spread = timed.Spread.of([7, 1, 3, 2])
    assert spread == timed.Spread(median=2.5, low=1, high=7)
    assert 1 in spread
    assert 7 in spread
    assert 0.9 not in spread


def test_sums_of_a_side(comparison, three_seeds):
    ours, theirs = three_seeds.of("ours"), three_seeds.of("huggingface")
    assert comparison.spread_of(ours, "accuracy").median == 0.85
    assert comparison.spread_of(theirs, "train_seconds").high == 203.0
    assert comparison.ratio(ours, theirs, "train_seconds") == 102 / 202
    assert three_seeds.has("ours", 3)
    assert not three_seeds.has("ours", 4)
    assert not three_seeds.has("ours_static", 1)


def test_it_is_told_that_no_run_was_alone(comparison, write_results, run):
    settings = comparison.Settings("mrpc", "/data", "/weights")
    runs = [
        run("ours", 1, 0.8, 100.0, other_cpu_seconds=34.0),
        run("huggingface", 1, 0.8, 100.0),
    ]
    told = list(
        write_results.remarks(
            comparison.Comparison("command", settings, {}, {}, runs)
        )
    )
    assert [line for line in told if "No run of" in line] == [
        "- No run of bert_tf was alone on the machine: its times are those of "
        "disturbed runs"
    ]


def test_times_are_of_runs_that_were_alone(comparison, write_results, run):
    alone = run("ours", 1, 0.8, 100.0)
    disturbed = run("ours", 2, 0.9, 300.0, other_cpu_seconds=34.0)
    assert alone.is_timed
    assert not disturbed.is_timed
    runs = [alone, disturbed]
    assert comparison.spread_of(runs, "train_seconds").high == 100.0
    assert comparison.spread_of(runs, "accuracy").high == 0.9
    assert comparison.spread_of([disturbed], "seconds").high == 331.0


def test_ours_comes_first_whoever_began(three_seeds):
    assert three_seeds.sides == ["ours", "huggingface"]


def test_a_section_has_all_that_was_measured(write_results, three_seeds):
    text = write_results.section(three_seeds)
    lines = text.splitlines()
    assert lines[0] == "## MRPC"
    assert three_seeds.command in lines
    assert "- A processor, AVX2; 2 of 2 cores for each side; 7 GiB" in text
    assert "- small/model; 3 epochs, batches of 32, rate 5e-05" in text
    assert "- Hugging Face Trainer: torch 2.13" in lines
    assert (
        "| bert_tf | 3 (3 timed) | 85.0 (84.0 to 86.0) | 90.0 (89.0 to 91.0) "
        "| 102 (101 to 103) | 133 (132 to 134) | 204 (202 to 206) | 3,072 |"
    ) in lines
    # 102/202, 133/233, 204/404.
    assert "| Hugging Face Trainer | 0.50 | 0.57 | 0.50 | 1.00 |" in lines
    assert text.count("| bert_tf | ") == 1 + 3
    assert text.count("| Hugging Face Trainer | ") == 2 + 3
    assert "eval_loss 0.250000 (0.250001)" in text


def test_every_table_has_as_many_cells_in_each_line(
    benchmarks, write_results, three_seeds
):
    for rows in (
        write_results.spreads(three_seeds),
        write_results.ratios(three_seeds),
        write_results.every_run(three_seeds),
    ):
        lines = benchmarks("pages").table(rows)
        assert len({line.count("|") for line in lines}) == 1
        assert set(lines[1]) == set("| -")


@pytest.mark.parametrize(
    ("accuracy", "place"), [(0.85, "within"), (0.9, "above"), (0.7, "below")]
)
def test_where_the_median_lies(
    write_results, three_seeds, run, accuracy, place
):
    three_seeds.runs = [
        *three_seeds.of("huggingface"),
        run("ours", 1, accuracy, 100.0),
    ]
    accuracy_line, *_ = write_results.remarks(three_seeds)
    assert f", is {place} the spread of Hugging Face" in accuracy_line
    assert accuracy_line.endswith("80.0 to 87.0")


def test_one_side_alone_has_no_ratios(write_results, three_seeds):
    three_seeds.runs = three_seeds.of("ours")[:1]
    three_seeds.cross_check = None
    text = write_results.section(three_seeds)
    assert "| bert_tf | 1 | 85.0 | 90.0 | 101 | 132 | 202 | 3,072 |" in text
    assert "bert_tf over" not in text
    assert "\n\n\n" not in text


def test_a_page_keeps_what_is_above_its_mark(
    write_results, three_seeds, tmp_path
):
    page, results = tmp_path / "results.md", tmp_path / "mrpc.json"
    three_seeds.write(results)
    opening = "# Results\n\nBy hand.\n\n"
    page.write_text(opening + write_results.MARK + "old", encoding="utf-8")
    write_results.main(str(page), str(results), str(results))
    text = page.read_text(encoding="utf-8")
    assert text.startswith(opening + write_results.MARK + "\n## MRPC\n")
    assert text.count("## MRPC") == 2
    assert "old" not in text
    once = text
    write_results.main(str(page), str(results), str(results))
    assert page.read_text(encoding="utf-8") == once


def test_a_page_without_its_mark_is_left_alone(write_results, tmp_path):
    page = tmp_path / "results.md"
    page.write_text("# Results\n", encoding="utf-8")
    with pytest.raises(SystemExit, match="expected the line"):
        write_results.main(str(page))
    assert page.read_text(encoding="utf-8") == "# Results\n"


def test_the_page_of_the_project_has_the_mark(write_results):
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    assert page.count(write_results.MARK) == 1
