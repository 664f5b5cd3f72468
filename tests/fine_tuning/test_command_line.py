"""What the flags of fine-tuning turn into."""

import json
import types

import fine_tuning_runs
import pytest
import tensorflow as tf
from absl import flags
from absl.testing import flagsaver

from bert_tf import flags as bert_flags
from bert_tf.config import BertConfig
from bert_tf.errors import InputError
from bert_tf.fine_tuning import command_line, exports
from bert_tf.interop.companions import write_companions
from bert_tf.interop.pretrained import Pretrained
from bert_tf.training import checkpoints
from tests.training import toy_task

METRICS = ["eval_f1", "eval_loss", "loss"]
STRATEGY = tf.distribute.get_strategy()
CONFIG = BertConfig.from_dict(
    {**fine_tuning_runs.CONFIG, "num_hidden_layers": 3}
)


@pytest.fixture(scope="module", autouse=True)
def script():
    """Its flags are defined for as long as these tests run."""
    with fine_tuning_runs.classifier():
        yield


@pytest.fixture
def given():
    """Parses a command line; the flags are what they were afterwards."""
    with flagsaver.flagsaver():
        flags.FLAGS.unparse_flags()
        yield lambda *words: flags.FLAGS(["run_classifier.py", *words])


def test_a_flag_is_given_or_not(given):
    given("--do_lower_case=true")
    assert command_line.given("do_lower_case") is True
    given_nothing = command_line.given("max_seq_length")
    assert given_nothing is None


@pytest.mark.parametrize(
    ("word", "selects"),
    [
        ("--do_eval", False),
        ("--num_seeds=1", False),
        ("--num_seeds=2", True),
        ("--eval_steps=5", True),
        ("--save_best=f1", True),
        ("--search=paper", True),
    ],
)
def test_who_needs_a_development_set(given, word, selects):
    given(word)
    assert command_line.selects() is selects


@pytest.mark.parametrize(
    ("words", "splits"),
    [
        (["--do_train"], ["train"]),
        (["--do_predict", "--do_train"], ["train", "test"]),
        (["--do_eval"], ["dev"]),
        (["--do_train", "--num_seeds=2"], ["train", "dev"]),
        (["--do_predict", "--num_seeds=2"], ["test"]),
        (["--do_export"], []),
        (["--do_export", "--num_seeds=2"], []),
        (["--do_export", "--do_train"], ["train"]),
        (["--do_export", "--do_predict"], ["test"]),
    ],
)
def test_the_splits_are_those_that_are_needed(given, words, splits):
    given(*words)
    assert command_line.splits() == splits


def test_a_run_has_something_to_do(given):
    given("--nodo_train")
    flags_of_runs = "--do_train, --do_eval, --do_predict, --do_export"
    with pytest.raises(InputError, match=flags_of_runs):
        command_line.splits()


def test_a_schedule_is_what_the_flags_say(given):
    given(
        "--num_train_epochs=2.5",
        "--warmup_proportion=0.2",
        "--eval_steps=7",
        "--save_best=f1",
        "--early_stopping_patience=3",
        "--num_seeds=5",
        "--search=paper",
        "--log_steps=11",
    )
    schedule = command_line.schedule(METRICS)
    assert schedule.num_train_epochs == 2.5
    assert schedule.warmup_proportion == 0.2
    assert schedule.eval_steps == 7
    assert schedule.save_best == "eval_f1"
    assert schedule.early_stopping_patience == 3
    assert (schedule.num_seeds, schedule.search) == (5, "paper")
    assert schedule.log_steps == 11


@pytest.mark.parametrize(
    ("name", "metric"),
    [("f1", "eval_f1"), ("eval_f1", "eval_f1"), ("loss", "loss")],
)
def test_the_name_of_a_metric_may_be_short(given, name, metric):
    given(f"--save_best={name}")
    assert command_line.schedule(METRICS).save_best == metric


def test_metrics_that_are_none(given):
    given("--save_best=mcc")
    with pytest.raises(InputError, match=r"among eval_f1, .*Received: mcc$"):
        command_line.schedule(METRICS)
    given("--early_stopping_patience=2")
    flags.FLAGS.save_best = None
    with pytest.raises(InputError, match="by which metric"):
        command_line.schedule(METRICS)


def test_rates_shrink_layer_by_layer_on_request(given):
    given("--learning_rate=3e-5", "--train_batch_size=16")
    config = command_line.training_config(CONFIG)
    assert (config.learning_rate, config.train_batch_size) == (3e-5, 16)
    assert config.rate_multipliers == ()
    given("--layer_rate_decay=0.5")
    factors = [
        f for _, f in command_line.training_config(CONFIG).rate_multipliers
    ]
    assert factors == [0.0625, 0.125, 0.25, 0.5]


@pytest.mark.parametrize(
    ("word", "static"),
    [
        ("--padding=auto", False),
        ("--padding=longest", False),
        ("--padding=max_length", True),
    ],
)
def test_padding_on_a_cpu(given, word, static):
    given(word)
    for strategy in (tf.distribute.get_strategy(), toy_task.two_devices()):
        assert command_line.padding(strategy).static is static


def test_padding_on_a_tpu(given, monkeypatch):
    """Nothing of it is needed but its class."""

    class Tpu:
        pass

    monkeypatch.setattr(tf.distribute, "TPUStrategy", Tpu)
    given()
    assert command_line.padding(Tpu()).static
    given("--padding=longest")
    with pytest.raises(InputError, match="have fixed shapes"):
        command_line.padding(Tpu())


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ((), []),
        (("--num_frozen_layers=0",), ["embeddings"]),
        (("--num_frozen_layers=2",), ["embeddings", "layer_0", "layer_1"]),
    ],
)
def test_names_of_frozen_layers(given, words, names):
    given(*words)
    assert command_line.frozen_layers(CONFIG) == names


def test_more_frozen_layers_than_there_are(given):
    given("--num_frozen_layers=4")
    with pytest.raises(InputError, match=r"up to 3, .* Received: 4"):
        command_line.frozen_layers(CONFIG)


# Where a run starts, and where it goes.


@pytest.fixture
def release(tmp_path):
    """The release of a run in `out`: tables of words alone."""
    folder = tmp_path / "out" / "release"
    folder.mkdir(parents=True)
    words = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    vocab = (*words, *(f"w{n}" for n in range(CONFIG.vocab_size - len(words))))
    prefix = str(folder / "bert_model.ckpt")
    checkpoints.write(
        prefix,
        {
            "bert/embeddings/word_embeddings": tf.zeros(
                [CONFIG.vocab_size, 8]
            ).numpy()
        },
    )
    facts = {"config": CONFIG, "vocab": vocab, "labels": ("a", "b")}
    write_companions(
        str(folder), Pretrained(prefix, {}, do_lower_case=False, **facts)
    )
    return folder


def test_an_old_folder_tells_what_it_was_made_with(given, release, tmp_path):
    given(f"--output_dir={tmp_path}/out", "--max_seq_length=29", "--do_eval")
    start = command_line.find_start()
    assert start.config == CONFIG
    assert start.labels == ("a", "b")
    assert start.do_lower_case is False
    # The weights are its checkpoint's, or its best ones.
    assert start.init_checkpoint is None


def test_training_starts_from_what_it_is_told(given, release, tmp_path):
    given(f"--output_dir={tmp_path}/out", "--max_seq_length=29", "--do_train")
    with pytest.raises(InputError, match="--bert_config_file, or --init"):
        command_line.find_start()
    given(f"--init_checkpoint={release}")
    assert command_line.find_start().init_checkpoint == str(release)


def test_longer_than_the_model(given, release):
    given(f"--init_checkpoint={release}", "--output_dir=x", "--do_train")
    with pytest.raises(InputError, match=r"at most 29.*Received: 128"):
        command_line.find_start()


# What is exported, and where to.


def record(folder, **settings):
    """Leaves what a training with these settings leaves."""
    text = json.dumps({"facts": {}, "settings": settings})
    (folder / "fine_tuning.json").write_text(text, encoding="utf-8")


def test_an_export_takes_the_length_of_the_training(given, release, tmp_path):
    """This script has no --doc_stride: it is none of its business."""
    record(tmp_path / "out", max_seq_length=17, doc_stride=5, eval_steps=3)
    given(f"--output_dir={tmp_path}/out", "--do_export", "--do_eval")
    command_line.find_start()
    assert flags.FLAGS.max_seq_length == 17
    assert flags.FLAGS.eval_steps == 0


@pytest.mark.parametrize(
    ("words", "length"),
    [
        (["--do_export", "--max_seq_length=19"], 19),
        (["--do_export", "--max_seq_length=128"], 128),
        (["--do_predict"], 128),
        (["--do_export", "--do_train"], 128),
    ],
)
def test_a_length_is_what_it_is_told(given, tmp_path, words, length):
    """And where training goes on, or nothing is exported, the default."""
    (tmp_path / "out").mkdir()
    record(tmp_path / "out", max_seq_length=17)
    given(f"--output_dir={tmp_path}/out", *words)
    with pytest.raises(InputError, match="expected --bert_config_file"):
        command_line.find_start()
    assert flags.FLAGS.max_seq_length == length


@pytest.mark.parametrize("settings", [None, {"mixed_precision": "float32"}])
def test_nobody_knows_the_length(given, release, tmp_path, settings):
    if settings:
        record(tmp_path / "out", **settings)
    given(f"--output_dir={tmp_path}/out", "--do_export")
    with pytest.raises(InputError, match=r"at most 29.*Received: 128"):
        command_line.find_start()


def test_exports_lie_in_the_output_folder_unless_told(given):
    given("--output_dir=out")
    assert bert_flags.export_dir() == "out/export"
    given("--output_dir=out", "--export_dir=")
    assert bert_flags.export_dir() == "out/export"
    given("--output_dir=out", "--export_dir=gs://mine/models/mood")
    assert bert_flags.export_dir() == "gs://mine/models/mood"


@pytest.fixture
def exported(monkeypatch):
    """What is told to the one who exports, who does nothing here."""
    told = []
    monkeypatch.setattr(
        exports,
        "export_kept",
        lambda *given, **more: told.append((given, more)),
    )
    return told


def kept(step):
    """All that is asked of an estimator."""
    return types.SimpleNamespace(step=step)


def test_nothing_is_exported_unasked(given, exported):
    given("--output_dir=out", "--do_train")
    command_line.export(kept(3), "mood", print)
    assert not exported


def test_what_an_export_tells_of_its_model(given, exported, tmp_path):
    record(tmp_path, init_checkpoint="hf://google/bert")
    scores = {"eval_f1": 0.5, "global_step": 3}
    (tmp_path / "eval_results.json").write_text(json.dumps(scores))
    given(f"--output_dir={tmp_path}", "--do_export")
    command_line.export(kept(3), "mood", print)
    [(told, more)] = exported
    assert told[1:] == (print, str(tmp_path / "export"))
    assert more == {
        "name": "mood",
        "metrics": scores,
        "source": "hf://google/bert",
    }
    command_line.export(kept(4), "mood", print)
    assert exported[1][1]["metrics"] is None


def test_a_model_from_elsewhere_has_no_step(given, exported, tmp_path):
    """The scores that lie there may be another one's, whose step is 0 too."""
    scores = {"eval_f1": 0.5, "global_step": 0}
    (tmp_path / "eval_results.json").write_text(json.dumps(scores))
    words = [f"--output_dir={tmp_path}", "--init_checkpoint=mine"]
    given(*words, "--do_export")
    command_line.export(kept(0), "mood", print)
    given(*words, "--do_export", "--do_eval")
    command_line.export(kept(0), "mood", print)
    told = [(more["metrics"], more["source"]) for _, more in exported]
    assert told == [(None, "mine"), (scores, "mine")]


# Whose a folder is.


def test_a_folder_is_claimed_with_its_settings(given, tmp_path):
    path = tmp_path / "out" / "fine_tuning.json"
    given(f"--output_dir={tmp_path}/out", "--do_train", "--learning_rate=0.25")
    command_line.claim_output_dir(STRATEGY, {"task": "rte"}, [])
    (tmp_path / "out" / "model.ckpt-1.index").touch()
    settings = json.loads(path.read_text())["settings"]
    assert settings["learning_rate"] == 0.25
    assert {"class_weights", "label_smoothing", "save_best"} <= set(settings)
    given("--nodo_train", "--learning_rate=0.5")
    command_line.claim_output_dir(STRATEGY, {"task": "rte"}, [])
    assert json.loads(path.read_text())["settings"] == settings
    given("--do_train")
    command_line.claim_output_dir(STRATEGY, {"task": "rte"}, [])
    assert json.loads(path.read_text())["settings"] == settings
    given("--nodo_train", "--overwrite_output_dir")
    with pytest.raises(InputError, match="expected --do_train with"):
        command_line.claim_output_dir(STRATEGY, {"task": "rte"}, [])


def test_what_a_run_reads_is_not_overwritten(given, release, tmp_path):
    given(
        f"--output_dir={tmp_path}/out",
        f"--init_checkpoint={release}/bert_model.ckpt",
        "--do_train",
        "--overwrite_output_dir",
    )
    (tmp_path / "out" / "fine_tuning.json").write_text('{"facts": {}}')
    with pytest.raises(InputError, match="which it would remove"):
        command_line.claim_output_dir(STRATEGY, {"task": "rte"}, [])
    assert (release / "vocab.txt").exists()


@pytest.mark.parametrize("place", ["out/export", "elsewhere/models"])
def test_the_place_of_the_export_is_looked_at_first(given, tmp_path, place):
    """Nothing is claimed, and a run that is to be replaced stays its own."""
    out = tmp_path / "out"
    (tmp_path / place).parent.mkdir()
    (tmp_path / place).write_text("mine")
    words = [f"--output_dir={out}", "--do_train", "--do_export"]
    words.append(f"--export_dir={tmp_path / place}")
    given(*words)
    with pytest.raises(InputError, match=f"for the export.*{place}: "):
        command_line.claim_output_dir(STRATEGY, {"task": "rte"}, [])
    assert not (out / "fine_tuning.json").exists()
    record(out)
    (out / "model.ckpt-1.index").touch()
    given(*words, "--overwrite_output_dir")
    with pytest.raises(InputError, match=f"for the export.*{place}: "):
        command_line.claim_output_dir(STRATEGY, {"task": "rte"}, [])
    assert (out / "model.ckpt-1.index").exists()
    assert not (out / "overwritten").exists()
    assert (tmp_path / place).read_text() == "mine"


def test_a_folder_of_another_task_gets_no_exports(given, tmp_path):
    out = tmp_path / "out"
    given(f"--output_dir={out}", "--do_train")
    command_line.claim_output_dir(STRATEGY, {"task": "rte"}, [])
    (out / "model.ckpt-1.index").touch()
    given("--nodo_train", "--do_export")
    with pytest.raises(InputError, match=r"of task mrpc.*a run of task rte"):
        command_line.claim_output_dir(STRATEGY, {"task": "mrpc"}, [])
    assert not (out / "export").exists()
    command_line.claim_output_dir(STRATEGY, {"task": "rte"}, [])
    assert (out / "export").is_dir()
