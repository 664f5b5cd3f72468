"""Which batch is tried next on a TPU, and how the answers are told."""

import dataclasses
import sys

import pytest

from tests import in_process

GIB = 2**30


@pytest.fixture(scope="module")
def tpu_results(benchmarks):
    return benchmarks("tpu_results")


@pytest.fixture(scope="module")
def tpu_section(benchmarks):
    return benchmarks("tpu_section")


@pytest.fixture(scope="module")
def case(tpu_results):
    return tpu_results.Case("pretraining", "training", "base", 128, "v5e")


def answer(tpu_results, case, size, total, available):
    """What the compiler says; most of it grows with the batch."""
    memory = total <= available and {
        "arguments": total // 8,
        "temporaries": total - total // 4,
        "outputs": 0,
        "program": total // 8,
    }
    return tpu_results.Trial(case, size, memory or None, available, 60.0)


def search(tpu_results, case, total_of, available, known=()):
    """All batches that are tried, in turn, with the results."""
    results = tpu_results.Results({"jax": "0.10.2"}, 4, list(known))
    sizes = []
    while size := results.next_batch_size(case, available):
        assert size not in sizes
        assert len(sizes) < 20
        sizes.append(size)
        total = total_of(size)
        results.trials.append(answer(tpu_results, case, size, total, available))
    return sizes, results


def steady(size):
    return 89 + 11 * size


@pytest.mark.parametrize("available", [101, 113, 997, 5003, 70001])
def test_the_largest_that_fits(tpu_results, case, available):
    sizes, results = search(tpu_results, case, steady, available)
    largest = results.largest(case).batch_size
    assert steady(largest) <= available < steady(2 * largest)
    assert 2 * largest in sizes
    assert len(sizes) <= 9


def test_the_line_hits(tpu_results, case):
    """It costs two programs more than those that decide, or less."""
    for fits in (128, 512, 2048):
        sizes, _ = search(tpu_results, case, steady, steady(fits) + 1)
        assert len(sizes) <= 4
        assert sizes[-2:] in ([fits, 2 * fits], [2 * fits, fits])


@pytest.mark.parametrize(
    "total_of",
    [
        lambda size: size**2,
        lambda size: int(10 * size**0.5),
        # A compiler computes some things twice, rather than to give up.
        lambda size: min(9 * size, 900) if size <= 128 else 10**6,
        lambda size: 7 if size <= 4096 else 10**6,
        lambda size: size if size <= 2 else 10**6,
    ],
    ids=["square", "root", "recomputed", "flat", "small"],
)
def test_memory_may_grow_in_another_way(tpu_results, case, total_of):
    _, results = search(tpu_results, case, total_of, 1000)
    largest = results.largest(case).batch_size
    assert total_of(largest) <= 1000 < total_of(2 * largest)


def test_nothing_fits(tpu_results, case):
    sizes, results = search(tpu_results, case, lambda size: 1000 + size, 100)
    assert sizes == [64, 32, 16, 8, 4, 2, 1]
    assert results.largest(case) is None


def test_a_like_step_tells_where_to_begin(tpu_results, case):
    """Programs of one chip are nearly those of another."""
    _, known = search(tpu_results, case, steady, 1000)
    other = dataclasses.replace(case, chip="v4")
    sizes, _ = search(
        tpu_results, other, lambda size: 90 + 11 * size, 2000, known.trials
    )
    assert sizes == [128, 256]
    unlike = dataclasses.replace(case, max_seq_length=512)
    assert known.next_batch_size(unlike, 2000) == 16


@pytest.fixture
def results(tpu_results, case):
    """Of BERT-Base 128 on v5e all is known, on v6e that 32 fit."""
    other = dataclasses.replace(case, chip="v6e")
    far = dataclasses.replace(case, chip="v5p")
    prediction = dataclasses.replace(case, kind="prediction")
    return tpu_results.Results(
        {"jax": "0.10.2", "libtpu": "0.0.52"},
        4,
        [
            answer(tpu_results, of, size, total * GIB, int(chip * GIB))
            for of, size, total, chip in (
                (case, 64, 5, 15.75),
                (case, 128, 9, 15.75),
                (case, 256, 17, 15.75),
                (prediction, 128, 1, 15.75),
                (far, 1024, 65, 95.75),
                (other, 32, 3, 31.25),
            )
        ],
    )


def test_a_file_there_and_back(tpu_results, results, tmp_path):
    results.write(tmp_path / "new" / "tpu.json")
    assert tpu_results.Results.read(tmp_path / "new" / "tpu.json") == results


def test_what_a_compiler_has_is_what_it_told(results):
    assert results.available("v5e") == 15.75 * GIB
    assert results.available("v4") is None


def test_a_section_has_all_answers(tpu_section, results):
    lines = tpu_section.section(results).splitlines()
    assert (
        "- v5e: 16 GiB by its makers, 15.75 for programs by its compiler"
        in lines
    )
    assert "| model | length | v4 | v5e | v5p | v6e |" in lines
    assert "| BERT-Base | 128 | (256) | 128 | 1024+ | 32+ |" in lines
    assert (
        "| v5e | BERT-Base | 128 | pretraining | training | 128 | 1.12 | 6.75 "
        "| 1.12 | 9.00 | 57% |"
    ) in lines
    assert (
        "| v5e | BERT-Base | 128 | pretraining | prediction | 128 | 0.12 | "
        "0.75 | 0.12 | 1.00 | 6% |"
    ) in lines
    assert (
        "| v5e | BERT-Base | 128 | pretraining | training | 256 |  |  |  | "
        "refused |  |"
    ) in lines
    assert "| BERT-Large | 512 | (?) | (?) | (?) | (?) |" in lines
    assert lines[lines.index("") + 1].startswith("- jax 0.10.2")
    assert any(
        line.endswith(
            ": classification (prediction), classification (training)"
        )
        for line in lines
    )
    assert "\n\n\n" not in "\n".join(lines)


def test_nothing_fits_is_told(tpu_results, tpu_section):
    case = tpu_results.Case("spans", "training", "large", 512, "v5e")
    trial = tpu_results.Trial(case, 1, None, 16 * GIB, 7.4)
    results = tpu_results.Results({}, 1, [trial])
    assert "| BERT-Large | 512 | (?) | 0 | (?) | (?) |" in tpu_section.section(
        results
    )
    assert tpu_section.line(trial) == (
        "v5e, BERT-Large, spans, training, 1 x 512: does not fit (7 s of CPU)"
    )


# The program that asks.


@pytest.fixture
def launch(benchmarks):
    with in_process.script("tpu_compile") as launch:
        yield launch


@pytest.fixture
def asked(launch, tpu_results, monkeypatch):
    """What the compiler is asked; an example takes a third of a GiB."""
    program, asked = sys.modules["tpu_compile"], []
    monkeypatch.setattr(program, "PACKAGES", ("pytest",))

    def compile_one(case, batch_size):
        asked.append((case.chip, case.kind, batch_size))
        available = {"v5e": 16 * GIB, "v6e": 31 * GIB}[case.chip]
        total = batch_size * GIB // 3
        return answer(tpu_results, case, batch_size, total, available)

    monkeypatch.setattr(program, "compile_one", compile_one)
    return asked


def words(tmp_path, *more):
    return [
        f"--output={tmp_path / 'tpu.json'}",
        *("--tasks=tokens", "--models=base", "--lengths=128"),
        *more,
    ]


def test_an_interrupted_search_goes_on(
    launch, asked, tpu_results, tmp_path, capsys
):
    assert launch(words(tmp_path, "--chips=v5e,v6e")) == 0
    everything = list(asked)
    assert everything == [
        ("v5e", "training", 64),
        ("v5e", "training", 32),
        ("v6e", "training", 64),
        ("v6e", "training", 128),
        ("v5e", "prediction", 32),
        ("v6e", "prediction", 64),
    ]
    assert len(capsys.readouterr().out.splitlines()) == len(everything)
    path = tmp_path / "tpu.json"
    results = tpu_results.Results.read(path)
    del results.trials[2:]
    results.write(path)
    asked.clear()
    assert launch(words(tmp_path, "--chips=v5e,v6e")) == 0
    assert asked == everything[2:]
    asked.clear()
    assert launch(words(tmp_path, "--chips=v5e,v6e")) == 0
    assert not asked


def test_answers_of_other_packages_are_not_mixed(
    launch, asked, tpu_results, tmp_path
):
    tpu_results.Results({"pytest": "1.0"}, 4).write(tmp_path / "tpu.json")
    message = launch(words(tmp_path))
    assert "expected --output of {'pytest': " in message
    assert "'1.0'" in message
    assert not asked


def test_packages_that_are_not_there(launch, asked, tmp_path, monkeypatch):
    program = sys.modules["tpu_compile"]
    monkeypatch.setattr(program, "PACKAGES", ("pytest", "no-such-package"))
    message = launch(words(tmp_path))
    assert message.endswith("`make tpu` installs. Received: no no-such-package")
    assert not asked
