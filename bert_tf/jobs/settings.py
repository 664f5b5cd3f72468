"""Options that several jobs share, and the library objects made from them.

TensorFlow is imported inside functions, so that a command line can be checked
without it.
"""

import contextlib
import dataclasses
import math
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from absl import logging

from bert_tf.base import files
from bert_tf.base.options import Options, local_option, option
from bert_tf.checkpoints.checkpoint import require_checkpoint
from bert_tf.errors import InputError, listed, wrong_value
from bert_tf.training.settings import STRATEGIES, TrainingConfig
from bert_tf.version import __version__

if TYPE_CHECKING:
    from bert_tf.config import BertConfig
    from bert_tf.data.batching import Padding
    from bert_tf.tasks.datasets import DataSet
    from bert_tf.training.distribution import DistributionConfig

# Values above these limits are typos that would fill the memory.
MOST_EXAMPLES = 2**20
MOST_TOKENS = 10**5

# The number of batch lengths if XLA compiles a program for each.
_LENGTHS = 4

_INIT_CHECKPOINT = (
    "Checkpoint to take the weights from: a TF1 checkpoint, a Hugging Face "
    "folder, hf://OWNER/NAME, a .keras file, or the name of one of Google's "
    "models, such as uncased_L-12_H-768_A-12, which is downloaded once."
)
# The need of options for custom files; see `Option.needs`.
_CUSTOM = "task_name=custom"


def _data_file(name: str) -> Any:
    return local_option(
        f"{name}; with --task_name, for custom tables only. Default: the file "
        "of the usual name in --data_dir.",
        needs=_CUSTOM,
    )


# The split of the data set that each step of a fine-tuning job needs.
_SPLITS = {"do_train": "train", "do_eval": "dev", "do_predict": "test"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeviceOptions(Options):
    """The devices and how they compute; TPU options are the original's."""

    distribution_strategy: str = option(
        "Devices to use. auto: the TPU with --use_tpu; otherwise the first of: "
        "the workers of TF_CONFIG, several GPUs, one device.",
        default="auto",
        choices=STRATEGIES,
        per_worker=True,
    )
    use_tpu: bool = option(
        "Whether to use a Cloud TPU.", default=False, per_worker=True
    )
    tpu_name: str | None = local_option(
        'Name or grpc:// address of the TPU; "local" on a TPU VM.'
    )
    tpu_zone: str | None = local_option("GCE zone of the TPU.")
    gcp_project: str | None = local_option("Google Cloud project of the TPU.")
    master: str | None = local_option("Address of the TPU's master.")
    num_tpu_cores: int = option(
        "Ignored, for old command lines: the TPU reports its number of cores.",
        default=8,
        per_worker=True,
    )
    iterations_per_loop: int = option(
        "Largest number of steps per call into TensorFlow. On a TPU, calls run "
        "fewer only at the start and before a checkpoint, log line or "
        "evaluation; other devices run as many as take about a second.",
        default=1000,
        per_worker=True,
    )
    mixed_precision: str = option(
        "Dtype of the activations, in exports too. Weights are always float32. "
        "float16 is for GPUs without bfloat16; training scales the loss.",
        default="float32",
        choices=("float32", "bfloat16", "float16"),
        decides="model",
    )
    jit_compile: str = option(
        "Whether XLA compiles the step. auto: whichever is faster.",
        default="auto",
        choices=("auto", "true", "false"),
    )

    def require_devices(self) -> None:
        """Raises InputError if the options name two kinds of devices."""
        strategy = self.distribution_strategy
        if self.use_tpu and strategy not in ("auto", "tpu"):
            raise wrong_value(
                "`distribution_strategy`",
                "auto or tpu, since `use_tpu` is set",
                strategy,
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportOptions(Options):
    """Whether and where to write a SavedModel."""

    do_export: bool = option(
        "Whether to write a SavedModel for TensorFlow Serving. Its inputs are "
        "texts.",
        default=False,
    )
    # Folder of the SavedModels, one subfolder per version. Default: `export` in
    # --output_dir.
    export_dir: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportDirOptions(ExportOptions):
    """Where a job without --output_dir exports to."""

    export_dir: str | None = local_option(
        "Folder of the SavedModels, one subfolder per version."
    )

    def require_export_dir(self) -> None:
        if self.do_export and not self.export_dir:
            raise InputError("`do_export` needs `export_dir`.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingOptions(Options):
    """How to train, apart from the number of steps; see `TrainingConfig`."""

    train_batch_size: int = option(
        "Number of examples per update, over all devices.",
        default=32,
        at_most=MOST_EXAMPLES,
        decides="setting",
    )
    eval_batch_size: int = option(
        "Number of examples per evaluation batch.",
        default=8,
        at_most=MOST_EXAMPLES,
    )
    learning_rate: float = option(
        "Peak learning rate.", default=5e-5, decides="setting"
    )
    optimizer: str = "adamw"
    adam_bias_correction: bool = option(
        "Whether AdamW corrects the bias of its moments, which makes short "
        "training runs more stable. The original does not.",
        default=False,
        decides="model",
    )
    weight_decay_rate: float = 0.01
    max_grad_norm: float = option(
        "Global norm that gradients are clipped to; 0 for no clipping.",
        default=1.0,
        decides="model",
    )
    gradient_accumulation_steps: int = option(
        "Number of parts that each batch is split into. More parts need less "
        "memory. The result is the same except for dropout masks and rounding.",
        default=1,
    )
    save_checkpoints_steps: int = option(
        "Number of steps between checkpoints.", default=1000
    )
    keep_checkpoint_max: int = 5
    log_steps: int = 100
    random_seed: int = option(
        "Seed of the new weights, of dropout and of the order of examples.",
        default=12345,
        decides="seed",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelOptions(Options):
    """The files of a model, with the names of the original's flags."""

    init_checkpoint: str | None = local_option(
        _INIT_CHECKPOINT, decides="model"
    )
    bert_config_file: str | None = local_option(
        "JSON file with the model's configuration, Google's or Hugging Face's. "
        "Default: the configuration of --init_checkpoint."
    )
    vocab_file: str | None = local_option(
        "Vocabulary file. Default: the vocabulary of --init_checkpoint."
    )

    def require_model(self, checkpoint: str | None) -> None:
        """Checks that the local files of a model and a checkpoint exist."""
        if checkpoint and not files.is_remote(checkpoint):
            require_checkpoint(checkpoint)
        require_files(self.bert_config_file, self.vocab_file)


@dataclasses.dataclass(frozen=True, kw_only=True)
class StartOptions(ModelOptions):
    """A model, and how its vocabulary was made."""

    do_lower_case: bool = option(
        "Whether the vocabulary is uncased. Default: as --init_checkpoint "
        "says, else true.",
        fallback=True,
    )
    strip_accents: bool | None = option(
        "Whether to strip accents. Default: as --init_checkpoint says, else "
        "the same as --do_lower_case.",
        default=None,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainedOptions(StartOptions):
    """A model that is used without training and needs a checkpoint."""

    init_checkpoint: str = option(_INIT_CHECKPOINT, per_worker=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataOptions(Options):
    """The files of a task that has a training, a development and a test set."""

    data_dir: str | None = local_option("Folder with the files of the task.")
    train_file: str | None = _data_file("Training file")
    dev_file: str | None = _data_file("Development file")
    test_file: str | None = _data_file("Test file")

    def warn_ignored(self) -> None:
        """Warns of options for custom files that another task ignores."""
        ignored = [
            f"`{name}`"
            for name, needs in self.without_effect().items()
            if needs == _CUSTOM
        ]
        if ignored:
            logging.warning(
                "Ignoring %s, for `%s` only", listed(ignored), _CUSTOM
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableOptions(DataOptions):
    """The files of a data set that may be custom tables.

    `id_column` is the column that identifies the rows in predictions.
    """

    header: bool = option(
        "Whether the first line of a custom file names the columns.",
        default=True,
        needs=_CUSTOM,
    )
    id_column: str | None = None

    def custom_data_set(
        self, problem: str = "regression", **more: Any
    ) -> "DataSet":
        """Returns the data set that the options describe.

        See `datasets.custom_data_set`.
        """
        from bert_tf.tasks import datasets

        named = (
            *("train_file", "dev_file", "test_file", "id_column"),
            *("text_a_column", "text_b_column", "label_column"),
        )
        return datasets.custom_data_set(
            self.data_dir or "",
            **{name: getattr(self, name) for name in named},
            has_header=self.header,
            problem=problem,
            **more,
        )

    def require_splits(
        self, data_set: Callable[[], "DataSet"], names: list[str]
    ) -> None:
        """Checks that a data set has the local files of the splits."""
        if names and not self.data_dir:
            raise InputError("`data_dir` is required, except to export only.")
        paths = self.data_dir, self.train_file, self.dev_file, self.test_file
        if any(map(files.is_remote, filter(None, paths))):
            return
        try:
            for name in names:
                data_set().split(name, self.data_dir or "")
        except InputError:
            # An ignored `train_file` explains why another file is expected.
            self.warn_ignored()
            raise


@dataclasses.dataclass(frozen=True, kw_only=True)
class FineTuningOptions(
    StartOptions, ExportOptions, TrainingOptions, DeviceOptions
):
    """Options that all fine-tuning jobs share."""

    output_dir: str = option("Folder of all output files.", per_worker=True)
    overwrite_output_dir: bool = option(
        "Whether to replace an earlier run in --output_dir.",
        default=False,
        needs="do_train",
    )
    max_seq_length: int = option(
        "Largest number of tokens of a sequence, [CLS] and [SEP] included.",
        fallback=128,
        at_least=3,
        at_most=MOST_TOKENS,
        recorded=True,
        decides="model",
    )
    do_train: bool = option("Whether to train.", default=False)
    do_eval: bool = option("Whether to evaluate.", default=False)
    do_predict: bool = option("Whether to predict.", default=False)
    predict_batch_size: int = option(
        "Number of examples per prediction batch.",
        default=8,
        at_least=1,
        at_most=MOST_EXAMPLES,
    )
    num_train_epochs: float = option(
        "Number of epochs, which may be a fraction.",
        default=3.0,
        at_most=1e9,
        decides="setting",
    )
    warmup_proportion: float = option(
        "Fraction of the steps in which the learning rate rises to its peak.",
        default=0.1,
        at_least=0.0,
        at_most=1.0,
        decides="model",
    )
    eval_steps: int = option(
        "Number of steps between evaluations during training. 0: none, or once "
        "per epoch with --save_best.",
        default=0,
        at_least=0,
        decides="model",
    )
    save_best: str | None = option(
        "Metric of eval_results.txt. The weights of the evaluation with the "
        "best value are kept; of several training runs, the best is kept. "
        "Default: the last weights are kept; the first metric of the task "
        "decides between several training runs.",
        default=None,
        decides="model",
    )
    early_stopping_patience: int = option(
        "Number of evaluations in a row without a better value of the "
        "--save_best metric after which training stops; 0 for never.",
        default=0,
        at_least=0,
        decides="model",
        needs="save_best",
    )
    num_seeds: int = option(
        "Number of training runs, each with a different seed. The best one is "
        "kept.",
        default=1,
        at_least=1,
        at_most=10**4,
    )
    search: str | None = option(
        "paper: trains with batch sizes 16 and 32, learning rates 5e-5, 3e-5 "
        "and 2e-5, for 2, 3 and 4 epochs, and keeps the best model.",
        default=None,
        choices=("paper",),
    )
    num_frozen_layers: int | None = option(
        "Number of layers to freeze, counted from the embeddings, which are "
        "frozen too: 0 freezes the embeddings only. Default: no layer is "
        "frozen.",
        default=None,
        at_least=0,
        decides="model",
    )
    lora_rank: int | None = option(
        "Rank of the LoRA adapters of the queries and values. With it, only "
        "these adapters and the head are trained; release/ holds the merged "
        "model. Default: all weights are trained.",
        default=None,
        at_least=1,
        at_most=MOST_TOKENS,
    )
    # See `FeatureModel.enable_lora`.
    lora_alpha: float | None = None
    # The ratio of a layer's learning rate to the rate of the layer above it.
    layer_rate_decay: float = 1.0
    gradient_checkpointing: bool = option(
        "Whether to recompute activations in the backward pass instead of "
        "keeping them.",
        default=False,
    )

    def check(self) -> None:
        splits(self)
        self.require_devices()
        training_config(self, 1, 0)
        self.require_effect("save_best")
        self.require_effect("do_train")
        if not self.do_train:
            require_files(self.bert_config_file, self.vocab_file)
            return
        self.require_model(self.init_checkpoint)
        if self.lora_rank and not self.init_checkpoint:
            raise InputError(
                "`lora_rank` trains adapters of a pre-trained encoder. Pass "
                "one as `init_checkpoint`."
            )
        if self.lora_rank and self.num_frozen_layers is not None:
            raise InputError(
                "`num_frozen_layers` has no effect with `lora_rank`, which "
                "freezes all layers. Leave out one of them."
            )
        if not self.search and self.num_train_epochs <= 0:
            raise InputError(
                "`num_train_epochs` must be more than 0 to train; got "
                f"{self.num_train_epochs:g}. Leave out `do_train` to use a "
                "model as it is."
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class DistillationOptions(FineTuningOptions):
    """Options of fine-tuning jobs whose models can learn from a teacher."""

    teacher: str | None = local_option(
        "Fine-tuned model whose outputs the model also learns from: release/ "
        "of an earlier run, or another checkpoint that --init_checkpoint "
        "accepts, with the same task, labels, vocabulary and casing. Default: "
        "none."
    )
    distillation_weight: float = option(
        "Weight of the --teacher's loss; the labels' loss has 1 - this weight.",
        default=0.9,
        at_least=0.0,
        at_most=1.0,
        decides="model",
        needs="teacher",
    )
    temperature: float = option(
        "Temperature that divides all logits in the --teacher's loss: higher "
        "values show more of how the teacher ranks incorrect answers.",
        default=2.0,
        at_least=0.1,
        at_most=100.0,
        decides="model",
        needs="teacher",
    )

    def check(self) -> None:
        self.require_effect("teacher")
        teacher = self.teacher if self.do_train else None
        if teacher is not None and not files.is_remote(teacher):
            require_checkpoint(teacher)
        super().check()


def require_files(*paths: str | None) -> None:
    """Raises InputError if a local file does not exist.

    Remote files are not checked, since that needs TensorFlow.
    """
    for path in filter(None, paths):
        if not files.is_remote(path):
            with files.input_errors("read", path):
                os.stat(path)


@contextlib.contextmanager
def precision_restored() -> Iterator[None]:
    """Restores Keras's dtype policy after the block: `connect` changes it."""
    import keras

    before = keras.config.dtype_policy()
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def connect(config: DeviceOptions) -> Any:
    """Sets the precision and returns the requested distribution strategy.

    Raises:
      InputError: The devices do not exist, or another worker of the run has
        different options or a different version of bert_tf.
    """
    import keras

    from bert_tf.training.distribution import make_strategy
    from bert_tf.training.workers import require_same_settings

    precision = config.mixed_precision
    policy = precision if precision == "float32" else f"mixed_{precision}"
    keras.config.set_dtype_policy(policy)
    strategy = make_strategy(distribution_config(config))
    require_same_settings(strategy, {"bert_tf": __version__, **config.shared()})
    return strategy


def distribution_config(config: DeviceOptions) -> "DistributionConfig":
    """Returns the devices that the options name."""
    from bert_tf.training.distribution import DistributionConfig

    # Scripts often pass --tpu_name always, and --use_tpu from a variable. As in
    # the original, a name without --use_tpu selects no TPU.
    strategy = config.distribution_strategy
    wants_tpu = config.use_tpu or strategy == "tpu"
    return DistributionConfig(
        strategy="tpu" if wants_tpu else strategy,
        tpu_name=(config.tpu_name or config.master) if wants_tpu else None,
        tpu_zone=config.tpu_zone,
        gcp_project=config.gcp_project,
    )


def jit_compile(config: DeviceOptions) -> bool | None:
    """Returns whether XLA compiles the step; None for auto."""
    return {"auto": None, "true": True, "false": False}[config.jit_compile]


def export_dir(config: Any) -> str:
    """Returns the folder of the SavedModels of a job with --output_dir."""
    return config.export_dir or os.path.join(config.output_dir, "export")


def training_config(
    config: Any, num_train_steps: int, num_warmup_steps: int
) -> TrainingConfig:
    """Returns the settings of a training.

    `config` is a `TrainingOptions` and a `DeviceOptions`. The learning rate
    rises for `num_warmup_steps`.
    """
    shared = {
        field.name: getattr(config, field.name)
        for field in dataclasses.fields(TrainingOptions)
        if field.name != "log_steps"
    }
    return TrainingConfig(
        **shared,
        num_train_steps=num_train_steps,
        num_warmup_steps=num_warmup_steps,
        iterations_per_loop=config.iterations_per_loop,
        jit_compile=jit_compile(config),
    )


def splits(config: FineTuningOptions) -> list[str]:
    """Returns the splits that the run needs, of "train", "dev" and "test".

    An export alone needs no split.

    Raises:
      InputError: There is nothing to do.
    """
    wanted = {split for name, split in _SPLITS.items() if getattr(config, name)}
    if not wanted and not config.do_export:
        raise InputError(
            "Nothing to do: pass at least one of "
            f"{', '.join(f'`{name}`' for name in [*_SPLITS, 'do_export'])}."
        )
    if config.do_train and selects(config):
        wanted.add("dev")  # Training evaluates on it.
    return [split for split in _SPLITS.values() if split in wanted]


def are_several(config: FineTuningOptions) -> bool:
    """Returns whether there are several trainings."""
    return config.num_seeds > 1 or config.search is not None


def selects(config: FineTuningOptions) -> bool:
    """Returns whether models are evaluated during or between trainings."""
    return bool(config.eval_steps or config.save_best) or are_several(config)


def padding(config: FineTuningOptions, strategy: Any) -> "Padding":
    """Returns how batches are padded on the devices of a strategy."""
    import tensorflow as tf

    from bert_tf.data.batching import Padding
    from bert_tf.training.distribution import should_compile

    if isinstance(strategy, tf.distribute.TPUStrategy):
        return Padding(static=True)  # Its programs have fixed shapes.
    if should_compile(strategy, jit_compile(config)):
        # XLA compiles a program for each length, so only a few are used.
        return Padding(multiple=math.ceil(config.max_seq_length / _LENGTHS))
    return Padding(multiple=1)


def model_options(
    config: FineTuningOptions, bert_config: "BertConfig"
) -> dict[str, Any]:
    """Returns the options of a `FineTuningTask` that all jobs share."""
    frozen: list[str] = []
    number, most = config.num_frozen_layers, bert_config.num_hidden_layers
    if number is not None:
        if number > most:
            raise wrong_value(
                "`num_frozen_layers`",
                f"at most {most}, the number of layers",
                number,
            )
        frozen = ["embeddings", *(f"layer_{layer}" for layer in range(number))]
    return {
        "frozen_layers": frozen,
        "gradient_checkpointing": config.gradient_checkpointing,
        "lora_rank": config.lora_rank,
        "lora_alpha": config.lora_alpha,
    }
