"""Fine-tuning beside Hugging Face's Trainer: scores, time, memory.

    python benchmarks/fine_tuning.py --task_name=mrpc \
        --data_dir=../shared/data/glue/MRPC --num_seeds=5 \
        --output=build/fine_tuning/mrpc.json

trains the same weights on the same data with the same recipe by
run_classifier.py and by peers/huggingface_trainer.py (--task_name=squad: by
run_squad.py and peers/huggingface_squad.py), in turn, seed by seed, each in a
process of its own on the same cores. The recipe: so many epochs,
batches of one size, one peak of a rate that rises for a tenth of the steps and
falls to zero in a line, Adam with bias correction, weight decay 0.01 but on
biases and norms, gradients clipped to 1, float32. Each side pads as it does
best.

Each run is a line. In the end there are the tables that write_results.py puts
into docs/results.md.

`--variants=ours,ours_static` compares batches by length with batches that are
padded to --max_seq_length. A command that was stopped goes on where it was
when it is given again with the same --output. The peer is installed into a
virtual environment of its own, once; --peer_python names one that is there.

Nothing else should run meanwhile: with a second program on the same cores
torch's threads, which wait for each other, take several times as long. What
others took is told for each run.
"""

import dataclasses
import os
import pathlib
import sys
import tempfile
from collections.abc import Mapping, Sequence

import benchmark_flags
import measured
import peer_environment
import write_results
from absl import app, flags
from comparison import METRICS_OF_TASK, Comparison, CrossCheck, Run, Settings
from minilm import minilm
from results_file import command_line
from sides import SIDES, evaluation_arguments, our_answer
from turns import in_turn

FLAGS = flags.FLAGS

flags.DEFINE_enum("task_name", None, list(METRICS_OF_TASK), "What is learned.")
flags.DEFINE_string("data_dir", None, "Folder of the two files.")
flags.DEFINE_string("train_file", "train.tsv", "Is trained on; SQuAD: JSON.")
flags.DEFINE_string("dev_file", "dev.tsv", "Is evaluated on; SQuAD: JSON.")
flags.DEFINE_string(
    "init_checkpoint",
    None,
    "Folder of weights in Hugging Face's layout; MiniLM unless given.",
)
flags.DEFINE_integer("max_seq_length", 128, "Longest sequence, in pieces.")
flags.DEFINE_integer("train_batch_size", 32, "Examples of a step.")
flags.DEFINE_integer("eval_batch_size", 8, "As the programs understand it.")
flags.DEFINE_float("learning_rate", 5e-5, "Peak of the learning rate.")
flags.DEFINE_float("num_train_epochs", 3.0, "May be a fraction.")
flags.DEFINE_integer("num_seeds", 3, "Trainings of each side.", lower_bound=1)
benchmark_flags.define_num_threads()
benchmark_flags.define_some("variants", SIDES, ["ours", "huggingface"])
benchmark_flags.define_output()
benchmark_flags.define_interpreter("peer_python", "huggingface")


def main() -> None:
    variables = measured.hold_to_cpus(FLAGS.num_threads)
    comparison = begin(settings_of_flags())
    for seed in range(1, FLAGS.num_seeds + 1):
        for name in in_turn(FLAGS.variants, seed - 1):
            if not comparison.has(name, seed):
                with tempfile.TemporaryDirectory() as folder:
                    place = Place(pathlib.Path(folder), variables)
                    train(comparison, name, seed, place)
    print(write_results.section(comparison))


def settings_of_flags() -> Settings:
    """What every side is given; paths hold wherever it runs."""
    names = (field.name for field in dataclasses.fields(Settings))
    settings = Settings(**{name: FLAGS[name].value for name in names})
    return dataclasses.replace(
        settings,
        data_dir=os.path.abspath(settings.data_dir),
        init_checkpoint=os.path.abspath(settings.init_checkpoint or minilm()),
    )


def begin(settings: Settings) -> Comparison:
    """What --output holds, to go on with, or a new comparison."""
    new = Comparison(command_line(), settings, measured.machine())
    path = FLAGS.output and pathlib.Path(FLAGS.output)
    if not path or not path.exists():
        return new
    old = Comparison.read(path)
    if (old.settings, old.machine) != (new.settings, new.machine):
        raise SystemExit(
            "error: expected --output of the same settings and machine, or a "
            f"new file. Received: {path}, of {old.settings} on {old.machine}"
        )
    old.command = new.command
    return old


def save(comparison: Comparison) -> None:
    if FLAGS.output:
        comparison.write(pathlib.Path(FLAGS.output))


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a side runs: a folder for it alone, and variables."""

    folder: pathlib.Path
    variables: Mapping[str, str]

    def run(self, command: Sequence[str]) -> measured.Usage:
        quiet = peer_environment.quiet(self.folder)
        return measured.run(command, self.folder, {**self.variables, **quiet})


def train(comparison: Comparison, name: str, seed: int, place: Place) -> None:
    """Trains once, keeps the run and prints it."""
    side, settings = SIDES[name], comparison.settings
    arguments = side.arguments(settings, seed, place.folder)
    usage = place.run([interpreter(side.peer), *arguments])
    answer = dataclasses.asdict(side.answer(settings, place.folder))
    comparison.versions[name] = answer.pop("versions")
    run = Run(name, seed, **answer, **dataclasses.asdict(usage))
    comparison.runs.append(run)
    print(write_results.line(run), flush=True)
    save(comparison)
    if side.peer and "ours" in FLAGS.variants and not comparison.cross_check:
        comparison.cross_check = check(settings, run, place)
        save(comparison)


def interpreter(peer: str | None) -> str:
    if peer is None:
        return sys.executable
    return benchmark_flags.interpreter("peer_python", peer)


def check(settings: Settings, run: Run, place: Place) -> CrossCheck:
    """Evaluates the model that the peer trained by our script.

    Equal numbers show that both sides read the files, cut and pad the texts,
    compute the model and its loss alike, with weights that have been trained.
    """
    theirs = dict(run.scores)
    if run.eval_loss is not None:
        theirs["eval_loss"] = run.eval_loss
    trained = dataclasses.replace(
        settings, init_checkpoint=str(place.folder / "model")
    )
    folder = place.folder / "check"
    folder.mkdir()
    again = dataclasses.replace(place, folder=folder)
    again.run([sys.executable, *evaluation_arguments(trained, folder)])
    answer = our_answer(trained, folder)
    ours = {**answer.scores, "eval_loss": answer.eval_loss}
    return CrossCheck(run.seed, {name: ours[name] for name in theirs}, theirs)


if __name__ == "__main__":
    flags.mark_flags_as_required(["task_name", "data_dir"])
    app.run(lambda argv: main())
