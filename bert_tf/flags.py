"""The command line: one way in for every script.

`run` replaces `absl.app.run`: an unknown flag is an error with the nearest
name beside it, a stray word is an error (`--do_lower_case False` sets the flag
to *true* and leaves "False" over, which the original never said), and what the
user can mend is told in one line without a traceback.

The flags that several scripts share are defined here in groups. A group has
one function that defines it and one that turns it into the plain dataclass
that the library takes.
"""

import contextlib
import math
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from absl import app, flags, logging

from bert_tf import files
from bert_tf.errors import InputError
from bert_tf.version import __version__

# TensorFlow takes seconds to import: scripts that do without it, and --help,
# shall not wait for it.
if TYPE_CHECKING:
    from bert_tf.training.distribution import DistributionConfig
    from bert_tf.training.estimator import TrainingConfig

FLAGS = flags.FLAGS

# Larger sizes are mistakes, and would be noticed only when memory is full.
_MOST = {
    "batch_size": 2**20,
    "dupe_factor": 10**6,
    "eval_batch_size": 2**20,
    "lstm_size": 10**6,
    "max_eval_steps": 2**31 - 1,
    "max_predictions_per_seq": 10**5,
    "max_seq_length": 10**5,
    "n_best_size": 10**4,
    "num_seeds": 10**4,
    "num_train_epochs": 10**9,
    "num_unused_tokens": 10**7,
    "num_workers": 1024,
    "predict_batch_size": 2**20,
    "train_batch_size": 2**20,
    "vocab_size": 10**7,
}
# TensorFlow and NumPy count in 64 bits.
_MOST_OF_OTHERS = 2**63 - 1

# What ends a program at once unless it is told otherwise.
STOP_SIGNALS = (signal.SIGTERM, signal.SIGHUP)

# Flags that may differ between the workers of a run: paths, for a folder may be
# a worker's own (what input files hold is compared where they are read), names
# of devices, and what has no effect on the results.
_FLAGS_OF_A_WORKER = frozenset(
    {
        *("input_file", "eval_input_file", "data_dir", "train_file"),
        *("dev_file", "test_file", "predict_file", "vocab_file"),
        *("bert_config_file", "init_checkpoint", "output_dir", "output_file"),
        *("export_dir", "glue_submission_dir"),
        *("distribution_strategy", "use_tpu", "tpu_name", "tpu_zone"),
        *("gcp_project", "master", "num_tpu_cores"),
        *("num_workers", "log_steps", "iterations_per_loop"),
    }
)

# Until a signal whose exception was lost is sent again.
SECONDS_TO_NEXT_TRY = 0.01


# What the script holds until it ends.
_held = contextlib.ExitStack()


def run(main: Callable[[], None], required: Sequence[str] = ()) -> None:
    """Parses the command line, then runs `main`; never returns.

    Args:
      main: The script's own function; it takes nothing and reads FLAGS.
      required: Names of the flags that have to be given.
    """
    # Or --help would leave out what is defined in the library.
    for module, defined in FLAGS.flags_by_module_dict().items():
        if module.startswith("bert_tf."):
            for flag in defined:
                FLAGS.register_key_flag_for_module(sys.argv[0], flag)
    app.run(
        lambda argv: _guarded(main),
        flags_parser=lambda argv: _parse(argv, required),
    )


def _parse(argv: Sequence[str], required: Sequence[str]) -> list[str]:
    logging.set_verbosity(logging.INFO)
    try:
        words = FLAGS(argv)
    except (flags.Error, ValueError) as error:
        # A ValueError of absl's: --noNAME=VALUE.
        _fail(f"{error} (--help lists the flags)", status=2)
    except SystemExit:
        sys.exit(0)  # --help was asked for, and absl ends it as a failure.
    for name in FLAGS:
        if fault := _fault(name, FLAGS[name].value):
            _fail(f"--{name} {fault} (--help lists the flags)", status=2)
    # A shell makes --name= of a variable that is not set.
    missing = [f"--{n}" for n in required if FLAGS[n].value in (None, "")]
    if missing:
        _fail(
            f"expected {', '.join(missing)}. Received: nothing (--help lists "
            "the flags)",
            status=2,
        )
    if len(words) > 1:
        _fail(
            "expected flags of the form --name=value only. Received: "
            f"{words[1]!r} (a boolean is switched off by --noNAME or "
            "--NAME=false)",
            status=2,
        )
    return words


def _fault(name: str, value: Any) -> str | None:
    """Says what is wrong with a value that no script can use."""
    if isinstance(value, str) and "tensorflow" in sys.modules:
        # Its functions take names of files that are UTF-8.
        return None if files.is_utf8(value) else f"must be UTF-8; got {value!r}"
    if type(value) is float and not math.isfinite(value):
        return f"must be a finite number; got {value}"
    is_bounded = type(value) is int or name in _MOST
    if type(value) not in (int, float) or not is_bounded:
        return None
    most = _MOST.get(name, _MOST_OF_OTHERS)
    if value > most:
        return f"must be at most {most:,}; got {value}"
    if value < -most:
        return f"must be at least {-most:,}; got {value}"
    return None


def hold(resource: contextlib.AbstractContextManager) -> None:
    """Enters a context, such as a lock, that `run` exits after `main`."""
    _held.enter_context(resource)


class Stopped(SystemExit):
    """A signal ends the program; as an exception, so that it can clean up."""

    def __init__(self, number: int):
        super().__init__(128 + number)
        self.number = number


def _guarded(main: Callable[[], None]) -> None:
    try:
        with _stoppable(), _held:
            main()
    except (InputError, OSError) as error:
        _fail(str(error), status=1)
    except KeyboardInterrupt:
        _fail("interrupted", status=128 + signal.SIGINT)
    except Stopped as stopped:
        name = signal.Signals(stopped.number).name
        _fail(f"stopped by {name}", status=stopped.code)


@contextlib.contextmanager
def _stoppable() -> Iterator[None]:
    """Turns STOP_SIGNALS into `Stopped`, and loses none of them.

    The exception is raised in whatever is running. Python drops it where that
    is a finalizer or a callback: then the signal is sent again a moment later,
    Ctrl-C as well, to who handles it by then. Where other code has caught it,
    it is raised at the end. A signal that is ignored, by `nohup`, stays so.
    """
    received, lost = [], []

    def stop(number: int, frame: object) -> None:
        received.append(number)
        raise Stopped(number)

    def note_lost(unraisable: "sys.UnraisableHookArgs") -> None:
        number = _signal_behind(unraisable.exc_value)
        if number is None:
            return hook_before(unraisable)
        lost.append(number)
        # Sent from here, it would be dropped like the first one.
        signal.setitimer(signal.ITIMER_REAL, SECONDS_TO_NEXT_TRY)

    def send_again(*_: object) -> None:
        while lost:
            signal.raise_signal(lost.pop())

    before = {
        number: signal.signal(number, stop)
        for number in STOP_SIGNALS
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    before[signal.SIGALRM] = signal.signal(signal.SIGALRM, send_again)
    hook_before, sys.unraisablehook = sys.unraisablehook, note_lost
    try:
        yield
        send_again()
        if received:
            raise Stopped(received[0])
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.unraisablehook = hook_before
        for number, handler in before.items():
            signal.signal(number, handler)


def _signal_behind(error: BaseException | None) -> int | None:
    """The signal that raised an exception, here or in `data/jobs.py`."""
    if isinstance(error, KeyboardInterrupt):
        return signal.SIGINT
    code = error.code if isinstance(error, SystemExit) else None
    numbers = (signal.SIGINT, *STOP_SIGNALS)
    return next((n for n in numbers if code == 128 + n), None)


def _fail(message: str, status: int) -> None:
    """Prints one line and leaves with `status`."""
    line = " ".join(message.split())
    print(f"{sys.argv[0]}: error: {line}", file=sys.stderr)
    sys.exit(status)


def define_device_flags() -> None:
    """Defines which devices to use, with the original's names."""
    flags.DEFINE_enum(
        "distribution_strategy",
        "auto",
        ["auto", "one_device", "mirrored", "multi_worker_mirrored", "tpu"],
        "Devices: auto takes a TPU if --use_tpu, the workers of TF_CONFIG, "
        "all GPUs, or one device.",
    )
    flags.DEFINE_bool("use_tpu", False, "Whether to use a Cloud TPU.")
    flags.DEFINE_string(
        "tpu_name", None, 'Name or grpc:// address of the TPU; "local" on it.'
    )
    flags.DEFINE_string("tpu_zone", None, "GCE zone of the TPU.")
    flags.DEFINE_string("gcp_project", None, "Project of the TPU.")
    flags.DEFINE_string("master", None, "Address of the TPU's master.")
    flags.DEFINE_integer(
        "num_tpu_cores",
        8,
        "Accepted for old command lines; the TPU itself says how many it has.",
    )
    flags.DEFINE_integer(
        "iterations_per_loop",
        1000,
        "Most steps of one call into TensorFlow; on a TPU exactly so many.",
    )
    flags.DEFINE_enum(
        "mixed_precision",
        "float32",
        ["float32", "bfloat16"],
        "Type of the activations; weights are float32 always.",
    )
    flags.DEFINE_enum(
        "jit_compile",
        "auto",
        ["auto", "true", "false"],
        "Whether XLA compiles the step; auto takes what is faster.",
    )


def define_export_flags() -> None:
    """Defines whether and where to write what a server loads."""
    flags.DEFINE_bool(
        "do_export",
        False,
        "Whether to write a SavedModel for TensorFlow Serving, which takes "
        "strings; where there is --mixed_precision, it computes with that.",
    )
    flags.DEFINE_string(
        "export_dir",
        None,
        "Folder of the SavedModels, each a version; where there is "
        "--output_dir, it is export in there if it is not given.",
    )


def export_dir() -> str:
    """The folder of the SavedModels."""
    return FLAGS.export_dir or os.path.join(FLAGS.output_dir, "export")


def connect() -> Any:
    """Sets the precision and returns the strategy that the flags ask for.

    Raises:
      InputError: The devices are not there, or another worker of the run has
        other flags or another version of bert_tf.
    """
    import keras

    from bert_tf.training.distribution import make_strategy
    from bert_tf.training.workers import require_same_settings

    policies = {"float32": "float32", "bfloat16": "mixed_bfloat16"}
    keras.config.set_dtype_policy(policies[FLAGS.mixed_precision])
    strategy = make_strategy(distribution_config())
    require_same_settings(strategy, {"bert_tf": __version__, **_shared()})
    return strategy


def _shared() -> dict[str, Any]:
    """Returns the flags that all workers of a run have to share."""
    return {
        f"--{flag.name}": flag.value
        for module, defined in FLAGS.flags_by_module_dict().items()
        for flag in defined
        if module.partition(".")[0] not in ("absl", "tensorflow")
        and flag.name not in _FLAGS_OF_A_WORKER
    }


def distribution_config() -> "DistributionConfig":
    """The devices that the flags of `define_device_flags` ask for."""
    from bert_tf.training.distribution import DistributionConfig

    # As in the original, whose users pass both from variables: a TPU's name
    # alone asks for none.
    strategy = FLAGS.distribution_strategy
    if FLAGS.use_tpu and strategy not in ("auto", "tpu"):
        raise InputError(
            "expected --use_tpu with --distribution_strategy=auto or tpu. "
            f"Received: {strategy}"
        )
    wants_tpu = FLAGS.use_tpu or strategy == "tpu"
    return DistributionConfig(
        strategy="tpu" if wants_tpu else strategy,
        tpu_name=(FLAGS.tpu_name or FLAGS.master) if wants_tpu else None,
        tpu_zone=FLAGS.tpu_zone,
        gcp_project=FLAGS.gcp_project,
    )


def define_training_flags() -> None:
    """Defines how to train, apart from the number of steps."""
    flags.DEFINE_integer(
        "train_batch_size", 32, "Examples of one update, over all devices."
    )
    flags.DEFINE_integer(
        "eval_batch_size", 8, "Examples of one evaluation batch."
    )
    flags.DEFINE_float("learning_rate", 5e-5, "Peak learning rate.")
    flags.DEFINE_enum(
        "optimizer", "adamw", ["adamw", "lamb"], "BERT's Adam, or LAMB."
    )
    flags.DEFINE_bool(
        "adam_bias_correction",
        False,
        "Whether BERT's Adam corrects the bias of its moments: steadier where "
        "there are few steps. The original does not.",
    )
    flags.DEFINE_float("weight_decay_rate", 0.01, "Decoupled weight decay.")
    flags.DEFINE_float(
        "max_grad_norm", 1.0, "Gradients are clipped to it; 0 for not at all."
    )
    flags.DEFINE_integer(
        "gradient_accumulation_steps",
        1,
        "Parts that a batch is cut into: less memory, the same result.",
    )
    flags.DEFINE_integer(
        "save_checkpoints_steps", 1000, "Steps between two checkpoints."
    )
    flags.DEFINE_integer(
        "keep_checkpoint_max", 5, "Newest checkpoints to keep; 0 keeps all."
    )
    flags.DEFINE_integer(
        "log_steps", 100, "Steps between two log lines and summaries."
    )
    flags.DEFINE_integer(
        "random_seed", 12345, "Decides weights, dropout and order of the data."
    )


def training_config(
    num_train_steps: int, num_warmup_steps: int
) -> "TrainingConfig":
    """The flags of `define_training_flags`, with the number of steps."""
    from bert_tf.training.estimator import TrainingConfig

    return TrainingConfig(
        train_batch_size=FLAGS.train_batch_size,
        eval_batch_size=FLAGS.eval_batch_size,
        learning_rate=FLAGS.learning_rate,
        num_train_steps=num_train_steps,
        num_warmup_steps=num_warmup_steps,
        optimizer=FLAGS.optimizer,
        adam_bias_correction=FLAGS.adam_bias_correction,
        weight_decay_rate=FLAGS.weight_decay_rate,
        max_grad_norm=FLAGS.max_grad_norm,
        gradient_accumulation_steps=FLAGS.gradient_accumulation_steps,
        save_checkpoints_steps=FLAGS.save_checkpoints_steps,
        keep_checkpoint_max=FLAGS.keep_checkpoint_max,
        iterations_per_loop=FLAGS.iterations_per_loop,
        random_seed=FLAGS.random_seed,
        jit_compile=jit_compile(),
    )


def jit_compile() -> bool | None:
    """Whether XLA compiles the step; None where the flag leaves it open."""
    return {"auto": None, "true": True, "false": False}[FLAGS.jit_compile]
