"""Speed of the pre-training step, beside transformers and KerasHub.

    python benchmarks/training_step.py --output=build/training_step.json

runs the step of run_pretraining.py (forward, masked words and next sentence,
backward, clipping, update) on random records; the same of transformers'
BertForPreTraining, eager and with torch.compile; and of KerasHub's encoder and
head. Each side is a process on the same cores, started for each case.

The share of the matmul peak counts only the products that the model needs,
three times the forward pass, relative to a large product of matrices that the
same process computes just before, in the same precision.
"""

import dataclasses
import itertools
import os
import sys
from collections.abc import Callable, Iterable, Mapping

from comparison import (
    OURS,
    Case,
    Comparison,
    ReportOptions,
    publish,
    python_option,
    require_known,
    rounds_option,
    section,
    take_turns,
    threads_option,
)
from sides import (
    BENCHMARKS,
    ROOT,
    limit_cpus,
    peer_python,
    started,
    without_compiler,
)
from workload import Workload

from bert_tf import BertConfig, cli, files
from bert_tf.errors import in_file
from bert_tf.options import option

EAGER, COMPILED, KERAS_HUB = "eager", "compiled", "keras_hub"
TITLES = {
    OURS: "bert_tf",
    EAGER: "transformers, torch",
    COMPILED: "transformers, torch.compile",
    KERAS_HUB: "KerasHub",
}
# What our sides import.
OUR_PATH = os.pathsep.join([str(ROOT), str(BENCHMARKS)])
VOCAB_SIZE = 30522
MODELS = {
    "384x6": BertConfig.from_name("L-6_H-384_A-6", VOCAB_SIZE),
    "base": BertConfig.from_name("base", VOCAB_SIZE),
    "tiny": BertConfig.from_name("L-1_H-32_A-2", 101),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepOptions(ReportOptions):
    """Options of the benchmarks of steps."""

    least_seconds: float = option("Least duration of a round.", default=5.0)
    num_threads: int | None = threads_option()
    go_on: bool = option(
        "Measure only the cases that --output lacks.", default=False
    )
    peer_python: str | None = python_option("huggingface")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingStepConfig(StepOptions):
    """Options of this benchmark."""

    models: tuple[str, ...] = option(
        f"Sizes of the model: {', '.join(MODELS)}.", default=("384x6", "base")
    )
    lengths: tuple[str, ...] = option(
        "Lengths of the sequences.", default=("128", "512")
    )
    precisions: tuple[str, ...] = option(
        "Dtypes of the products.", default=("float32", "bfloat16")
    )
    tokens: int = option("Tokens of a batch.", default=2048, at_least=1)
    rounds: int = rounds_option(3)
    variants: tuple[str, ...] = option(
        f"Sides: {', '.join(TITLES)}.", default=tuple(TITLES)
    )
    keras_hub_python: str | None = python_option("keras_hub")


def run(config: TrainingStepConfig) -> Comparison:
    """Runs the benchmark."""
    require_known("models", config.models, MODELS)
    require_known("precisions", config.precisions, ("float32", "bfloat16"))
    require_known("variants", config.variants, TITLES)
    comparison = Comparison(
        "Pre-training: a step of masked words and next sentence",
        "tokens/s",
        TITLES,
        facts=[
            "Examples without padding, 15 % of the tokens masked; a size is "
            "hidden x layers, base is 768 x 12; dropout 0.1; AdamW with "
            "clipping. bfloat16 is mixed: weights stay float32"
        ],
    )
    cases = []
    for model, length, precision in itertools.product(
        config.models, map(int, config.lengths), config.precisions
    ):
        batch_size = max(1, config.tokens // length)
        work = Workload(MODELS[model], ((length,),) * batch_size, length)
        request = work.request(
            precision,
            "cpu",
            steps=1,
            matrix_size=2048,
            products=1,
            least_seconds=config.least_seconds,
        )
        name = f"{model}, {batch_size} x {length}, {precision}"
        requests = dict.fromkeys(config.variants, request)
        cases.append(Case(name, batch_size * length, requests))

    def command(side: str) -> list[str]:
        if side == OURS:
            return [sys.executable, "bert_tf_training.py"]
        if side == KERAS_HUB:
            python = peer_python(config.keras_hub_python, KERAS_HUB, True)
            return [python, "keras_hub_training.py"]
        return transformers_command(config, side)

    variables = {OURS: {"PYTHONPATH": OUR_PATH}}
    measure(comparison, cases, config, config.rounds, command, variables)
    publish(section(comparison), config.page, "training_step")
    return comparison


def transformers_command(config: StepOptions, side: str) -> list[str]:
    python = peer_python(config.peer_python, "huggingface")
    more = ["--compile"] if side == COMPILED else []
    return [python, "huggingface_training.py", *more]


def measure(
    comparison: Comparison,
    cases: Iterable[Case],
    config: StepOptions,
    rounds: int,
    command: Callable[[str], list[str]],
    variables: Mapping[str, Mapping[str, str]],
) -> None:
    """Lets sides take turns; they are started for each case.

    Args:
      comparison: Gets the turns.
      cases: The work.
      config: The options.
      rounds: The number of rounds.
      command: Side -> its interpreter, its program and its arguments.
      variables: Side -> environment variables.
    """
    threads = limit_cpus(config.num_threads)
    cases = list(cases)
    requested = {name for case in cases for name in case.requests}
    comparison.left_out |= without_compiler({COMPILED} & requested)
    wanted = requested - comparison.left_out.keys()
    if config.go_on and config.output and files.exists(config.output):
        go_on(comparison, config.output, rounds, wanted)
    known = comparison.cases
    for case in cases:
        if case.name in known:
            continue
        names = [name for name in case.requests if name in wanted]
        words = f"--num_threads={threads['OMP_NUM_THREADS']}"
        with started(
            {name: [*command(name), words] for name in names},
            {name: {**threads, **variables.get(name, {})} for name in names},
        ) as sides:
            take_turns(comparison, [case], sides, rounds, config.output)


def go_on(
    comparison: Comparison, path: str, rounds: int, sides: Iterable[str]
) -> None:
    """Takes over the complete cases of an earlier file of results.

    Args:
      comparison: Gets their turns.
      path: The file.
      rounds: The number of rounds of a complete case.
      sides: The sides of a complete case.

    Raises:
      InputError: The file is of another machine or benchmark.
    """
    old = Comparison.read(path)
    for name in ("title", "machine", "facts"):
        found, expected = getattr(old, name), getattr(comparison, name)
        if found != expected:
            raise in_file(
                path,
                f"cannot go on: its {name} is {found!r}, not {expected!r}. "
                "Name another --output.",
            )
    whole = [
        case
        for case in old.cases
        if all(len(old.of(case, side)) >= rounds for side in sides)
    ]
    comparison.turns += [turn for turn in old.turns if turn.case in whole]
    comparison.versions |= old.versions


if __name__ == "__main__":
    cli.main(run)
