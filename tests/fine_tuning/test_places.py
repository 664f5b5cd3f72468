"""Where a run starts and where it goes, by its flags."""

import json
import pathlib
import shutil
import types

import fine_tuning_runs
import pytest
import tensorflow as tf
from absl import flags

from bert_tf import flags as bert_flags
from bert_tf.config import BertConfig
from bert_tf.errors import InputError
from bert_tf.fine_tuning import exports, output_folder, places
from bert_tf.interop.companions import write_companions
from bert_tf.interop.pretrained import Pretrained
from bert_tf.training import checkpoints

STRATEGY = tf.distribute.get_strategy()
CONFIG = BertConfig.from_dict(fine_tuning_runs.CONFIG)


@pytest.fixture(autouse=True)
def held(monkeypatch):
    """What a script would hold until it ends."""
    held = []
    monkeypatch.setattr(bert_flags, "hold", held.append)
    return held


def write_release(folder, **facts):
    """The release of a classifier that is a table of words alone."""
    folder.mkdir(parents=True)
    facts = {"head": "classifier", **facts}
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
    pretrained = Pretrained(prefix, {}, CONFIG, vocab, False, **facts)
    write_companions(str(folder), pretrained)
    return folder


@pytest.fixture
def release(tmp_path):
    """That of a run in `out`."""
    return write_release(tmp_path / "out" / "release", labels=("a", "b"))


def test_an_old_folder_tells_what_it_was_made_with(given, release, tmp_path):
    given(f"--output_dir={tmp_path}/out", "--max_seq_length=29", "--do_eval")
    start = places.find_start("classifier")
    assert start.config == CONFIG
    assert start.labels == ("a", "b")
    assert start.do_lower_case is False
    # The weights are its checkpoint's, or its best ones.
    assert start.init_checkpoint is None


def test_training_starts_from_what_it_is_told(given, release, tmp_path):
    given(f"--output_dir={tmp_path}/out", "--max_seq_length=29", "--do_train")
    with pytest.raises(InputError, match="--bert_config_file, or --init"):
        places.find_start("classifier")
    given(f"--init_checkpoint={release}")
    assert places.find_start("classifier").init_checkpoint == str(release)


@pytest.mark.parametrize("wish", ["--do_export", "--do_eval"])
def test_a_folder_without_a_model(given, tmp_path, wish):
    given(f"--output_dir={tmp_path}/new", wish)
    with pytest.raises(InputError, match=r"tuned model in --output_dir=.*new,"):
        places.find_start("classifier")
    assert not (tmp_path / "new").exists()


def test_a_model_of_another_task(given, tmp_path):
    """It may be the start of a training, and is of no use without one."""
    folder = write_release(tmp_path / "out" / "release", head="token")
    heads = "classifier", "choice"
    given(f"--output_dir={tmp_path}/out", "--do_export")
    message = "out/release, whose head is token, not classifier or choice; name"
    with pytest.raises(InputError, match=message):
        places.find_start(*heads)
    given("--max_seq_length=29")
    assert places.find_start("token").head == "token"
    given(f"--init_checkpoint={folder}", "--do_train")
    assert places.find_start(*heads).head == "token"


def test_a_run_in_the_folder_goes_before_the_checkpoint_it_came_from(
    given, tmp_path
):
    """Its labels are its own, though it was stopped before its release."""
    start = write_release(tmp_path / "start", labels=("0", "1"))
    out = tmp_path / "out"
    out.mkdir()
    facts = {"labels": ["entailment", "not_entailment"], "bilstm_head": False}
    record = {"facts": facts, "settings": {}}
    (out / "fine_tuning.json").write_text(json.dumps(record))
    (out / "model.ckpt-1.index").touch()
    given(
        f"--output_dir={out}",
        f"--init_checkpoint={start}",
        "--max_seq_length=29",
        "--do_eval",
    )
    labels = places.find_start("classifier").labels
    assert labels == ("entailment", "not_entailment")
    # The same where its checkpoint is named, for a folder of another run.
    for path in pathlib.Path(start).glob("bert_model.ckpt.*"):
        suffix = path.name.removeprefix("bert_model.ckpt")
        shutil.copy(path, out / f"model.ckpt-1{suffix}")
    given(
        f"--output_dir={tmp_path / 'other'}",
        f"--init_checkpoint={out / 'model.ckpt-1'}",
        f"--bert_config_file={start}/bert_config.json",
        f"--vocab_file={start}/vocab.txt",
    )
    assert places.find_start("classifier").labels == labels
    given(f"--init_checkpoint={start}", f"--output_dir={out}", "--do_train")
    assert places.find_start("classifier").labels == ("0", "1")


def test_longer_than_the_model(given, release):
    given(f"--init_checkpoint={release}", "--output_dir=x", "--do_train")
    with pytest.raises(InputError, match=r"at most 29.*Received: 128"):
        places.find_start("classifier")


# What is exported, and where to.


def record(folder, **settings):
    """Leaves what a training with these settings leaves."""
    text = json.dumps({"facts": {}, "settings": settings})
    (folder / "fine_tuning.json").write_text(text, encoding="utf-8")


@pytest.fixture
def told(caplog):
    """What was logged of flags since the last call."""
    caplog.set_level("INFO", "absl")

    def told():
        lines = [line for line in caplog.messages if "max_seq_length" in line]
        caplog.clear()
        return lines

    return told


def test_an_export_is_of_the_length_of_the_training(
    given, release, tmp_path, told
):
    """This script has no --doc_stride: it is none of its business."""
    out = tmp_path / "out"
    record(out, max_seq_length=17, doc_stride=5, eval_steps=3)
    given(f"--output_dir={out}", "--do_export", "--do_eval")
    places.find_start("classifier")
    assert flags.FLAGS.max_seq_length == 17
    assert flags.FLAGS.eval_steps == 0
    assert told() == [f"As {out} was trained: --max_seq_length=17"]


@pytest.mark.parametrize(
    ("words", "length"),
    [
        (["--do_export", "--max_seq_length=19"], 19),
        (["--do_export", "--max_seq_length=28"], 28),
        (["--do_export", "--do_train", "--max_seq_length=28"], 28),
    ],
)
def test_a_length_is_what_it_is_told(
    given, release, tmp_path, told, words, length
):
    record(tmp_path / "out", max_seq_length=17)
    start = f"--init_checkpoint={release}"
    given(f"--output_dir={tmp_path}/out", start, *words)
    places.find_start("classifier")
    assert flags.FLAGS.max_seq_length == length
    assert not told()


@pytest.mark.parametrize(
    "words", [["--do_predict"], ["--do_export", "--do_train"]]
)
def test_only_an_export_by_itself_looks_at_records(
    given, release, tmp_path, told, words
):
    record(tmp_path / "out", max_seq_length=17)
    start = f"--init_checkpoint={release}"
    given(f"--output_dir={tmp_path}/out", start, *words)
    with pytest.raises(InputError, match=r"at most 29.*Received: 128"):
        places.find_start("classifier")
    assert not told()


def test_a_release_knows_its_length(given, tmp_path, told):
    """In a new folder, and where a run began that has no model yet."""
    folder = write_release(tmp_path / "release", max_seq_length=13)
    start = f"--init_checkpoint={folder}"
    (tmp_path / "begun").mkdir()
    record(tmp_path / "begun", max_seq_length=17)
    for out in ("new", "begun"):
        given(f"--output_dir={tmp_path}/{out}", start, "--do_export")
        places.find_start("classifier")
        assert flags.FLAGS.max_seq_length == 13
        assert told() == [f"As {folder} was trained: --max_seq_length=13"]


@pytest.mark.parametrize(
    "settings", [{}, {"mixed_precision": "float32", "max_seq_length": None}]
)
def test_nobody_knows_the_length(given, release, tmp_path, told, settings):
    if settings:
        record(tmp_path / "out", **settings)
    given(f"--output_dir={tmp_path}/out", "--do_export")
    with pytest.raises(InputError, match=r"at most 29.*Received: 128"):
        places.find_start("classifier")
    [line] = told()
    assert line.startswith("By default, since it is not recorded")
    assert line.endswith(": --max_seq_length=128")


@pytest.mark.parametrize("value", ["long", 2, [13]])
def test_a_record_that_cannot_be(given, release, tmp_path, value):
    record(tmp_path / "out", max_seq_length=value)
    given(f"--output_dir={tmp_path}/out", "--do_export")
    with pytest.raises(
        InputError, match=r"--max_seq_length can be of how .*out"
    ):
        places.find_start("classifier")


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


def kept(checksum="0123"):
    """All that is asked of an estimator."""
    return types.SimpleNamespace(weights_checksum=lambda: checksum)


def test_nothing_is_exported_unasked(given, exported):
    given("--output_dir=out", "--do_train")
    places.export(kept(), "mood", print)
    assert not exported


def test_what_an_export_tells_of_its_model(given, exported, tmp_path):
    record(tmp_path, init_checkpoint="hf://google/bert")
    scores = {"eval_f1": 0.5, "global_step": 3}
    facts = {"train_seconds": 1.5, "weights_sha256": "0123"}
    (tmp_path / "eval_results.json").write_text(json.dumps(scores | facts))
    given(f"--output_dir={tmp_path}", "--do_export", "--init_checkpoint=mine")
    places.export(kept(), "mood", print)
    [(told, more)] = exported
    assert told[1:] == (print, str(tmp_path / "export"))
    assert more == {"name": "mood", "metrics": scores, "source": "mine"}
    (tmp_path / "model.ckpt-3.index").touch()
    places.export(kept("4567"), "mood", print)
    more = exported[1][1]
    assert (more["metrics"], more["source"]) == (None, "hf://google/bert")


# Whose a folder is.


def test_a_folder_is_claimed_with_its_settings(given, tmp_path):
    path = tmp_path / "out" / "fine_tuning.json"
    given(f"--output_dir={tmp_path}/out", "--do_train", "--learning_rate=0.25")
    places.claim_output_dir(STRATEGY, {"task": "rte"}, [])
    (tmp_path / "out" / "model.ckpt-1.index").touch()
    settings = json.loads(path.read_text())["settings"]
    assert settings["learning_rate"] == 0.25
    assert {"class_weights", "label_smoothing", "save_best"} <= set(settings)
    given("--nodo_train", "--learning_rate=0.5")
    places.claim_output_dir(STRATEGY, {"task": "rte"}, [])
    assert json.loads(path.read_text())["settings"] == settings
    given("--do_train")
    places.claim_output_dir(STRATEGY, {"task": "rte"}, [])
    assert json.loads(path.read_text())["settings"] == settings
    given("--nodo_train", "--overwrite_output_dir")
    with pytest.raises(InputError, match="expected --do_train with"):
        places.claim_output_dir(STRATEGY, {"task": "rte"}, [])


def test_another_seed_is_another_training(given, tmp_path, caplog):
    """Its folder goes on while there is something to train, and says so."""
    out = tmp_path / "out"

    def claim(*words):
        caplog.clear()
        given(f"--output_dir={out}", "--do_train", *words)
        places.claim_output_dir(STRATEGY, {"task": "rte"}, [])
        return caplog.text

    claim("--random_seed=1")
    (out / "model.ckpt-1.index").touch()
    assert not claim("--random_seed=1")
    assert "--random_seed was 1, is 2" in claim("--random_seed=2")
    (out / "release").mkdir()
    (out / "release" / "bert_model.ckpt.index").touch()
    message = r"--random_seed=2 has no effect: .*out .* --random_seed=1\. "
    with pytest.raises(InputError, match=message):
        claim("--random_seed=2")
    assert not claim("--random_seed=1")
    # Each of several trainings has a folder that is named by its seed.
    assert not claim("--random_seed=2", "--num_seeds=3")
    claim("--num_seeds=1", "--overwrite_output_dir")
    record = json.loads((out / "fine_tuning.json").read_text())
    assert record["settings"]["random_seed"] == 2


def test_what_chose_the_model_is_a_setting(given, tmp_path, caplog):
    """Scores of an old development set do not choose for a new one."""
    out = tmp_path / "out"

    def claim(development_set, *words):
        caplog.clear()
        given(f"--output_dir={out}", "--do_train", *words)
        places.claim_output_dir(
            STRATEGY, {"task": "rte"}, [], development_set=development_set
        )
        return caplog.text

    claim("old", "--save_best=loss")
    (out / "model.ckpt-1.index").touch()
    assert not claim("old")
    assert "the development set was another" in claim("new")
    with pytest.raises(InputError, match="the development set was another"):
        claim("new", "--num_seeds=2")
    # The last weights are kept whatever their score is.
    assert "development" not in claim("new", "--num_seeds=1", "--save_best=")


def test_a_folder_is_locked_for_a_training_alone(given, held, tmp_path):
    given(f"--output_dir={tmp_path}/out", "--do_eval")
    places.claim_output_dir(STRATEGY, {"task": "rte"}, [])
    assert not held
    given(f"--output_dir={tmp_path}/out", "--do_train")
    places.claim_output_dir(STRATEGY, {"task": "rte"}, [])
    [lock] = held
    with (
        output_folder.locked(str(tmp_path / "out")),
        pytest.raises(InputError, match=r"is writing to .*/out. Wait until"),
    ):
        lock.__enter__()


def test_what_a_run_reads_is_not_overwritten(given, release, tmp_path):
    given(
        f"--output_dir={tmp_path}/out",
        f"--init_checkpoint={release}/bert_model.ckpt",
        "--do_train",
        "--overwrite_output_dir",
    )
    (tmp_path / "out" / "fine_tuning.json").write_text('{"facts": {}}')
    with pytest.raises(InputError, match="which it would remove"):
        places.claim_output_dir(STRATEGY, {"task": "rte"}, [])
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
    with pytest.raises(InputError, match=f"the export to .*{place}: "):
        places.claim_output_dir(STRATEGY, {"task": "rte"}, [])
    assert not (out / "fine_tuning.json").exists()
    record(out)
    (out / "model.ckpt-1.index").touch()
    given(*words, "--overwrite_output_dir")
    with pytest.raises(InputError, match=f"the export to .*{place}: "):
        places.claim_output_dir(STRATEGY, {"task": "rte"}, [])
    assert (out / "model.ckpt-1.index").exists()
    assert not (out / "overwritten").exists()
    assert (tmp_path / place).read_text() == "mine"


def test_a_folder_of_another_task_gets_no_exports(given, tmp_path):
    out = tmp_path / "out"
    given(f"--output_dir={out}", "--do_train")
    places.claim_output_dir(STRATEGY, {"task": "rte"}, [])
    (out / "model.ckpt-1.index").touch()
    given("--nodo_train", "--do_export")
    with pytest.raises(InputError, match=r"of task mrpc.*a run of task rte"):
        places.claim_output_dir(STRATEGY, {"task": "mrpc"}, [])
    assert not (out / "export").exists()
    places.claim_output_dir(STRATEGY, {"task": "rte"}, [])
    assert (out / "export").is_dir()
