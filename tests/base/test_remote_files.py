"""Every script with all of its files at ram://, which `open` cannot reach.

It represents gs:// and the like: TensorFlow registers it in the same way, and
its folders are prefixes of names too.
"""

import json
import os
import random

import conll_files
import in_process
import pytest
import sentence_files
import squad_files
import tensorflow as tf
from fine_tuning_runs import CONFIG

from bert_tf.base import files
from bert_tf.checkpoints import tf1 as checkpoints
from bert_tf.checkpoints.pretrained import open_pretrained
from bert_tf.data import records
from tests.checkpoints.small_models import assert_same_weights

pytestmark = pytest.mark.slow

PLACE = "ram://scripts"
MODEL = f"{PLACE}/model/release"
LENGTH = 23
TRAINING = {
    "do_train": True,
    "do_eval": True,
    "max_seq_length": LENGTH,
    "train_batch_size": 4,
    "learning_rate": 0.01,
    "jit_compile": "false",
}


@pytest.fixture(scope="module", autouse=True)
def in_a_folder_of_its_own(tmp_path_factory):
    """Code that takes ram:// for a relative path leaves a folder `ram:`."""
    folder = tmp_path_factory.mktemp("here")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield
        assert os.listdir() == []


def run(script, **values):
    with in_process.script(script) as launch:
        assert launch([f"--{k}={v}" for k, v in values.items()]) == 0, script


def contents(folder):
    """Returns the relative paths of all files in a folder."""
    return {
        f"{place.removeprefix(folder)}/{name}".lstrip("/")
        for place, _, names in tf.io.gfile.walk(folder)
        for name in names
    }


def assert_exported(folder):
    """The newest version in a folder is complete."""
    version = max(tf.io.gfile.listdir(folder)).rstrip("/")
    assert contents(f"{folder}/{version}") >= {
        *("saved_model.pb", "variables/variables.index"),
        *("assets.extra/README.md", "assets.extra/tf_serving_warmup_requests"),
    }


@pytest.fixture
def copy(tmp_path):
    """Copies the files that a function writes to a local folder."""

    def copy(target, write, *args):
        write(tmp_path, *args)
        for path in filter(os.path.isfile, tmp_path.rglob("*")):
            remote = f"{target}/{path.relative_to(tmp_path)}"
            files.write_text(remote, path.read_text(encoding="utf-8"))
        return target

    return copy


def text(num_documents):
    draw = random.Random(7)
    documents = [
        "".join(
            " ".join(draw.choices(squad_files.WORDS, k=draw.randrange(3, 9)))
            + ".\n"
            for _ in range(draw.randrange(3, 7))
        )
        for _ in range(num_documents)
    ]
    return "\n".join(documents)


@pytest.fixture(scope="module", autouse=True)
def model():
    """Learns a vocabulary and pre-trains a model; stopped once, and resumed."""
    for name in ("a", "b"):
        files.write_text(f"{PLACE}/text/{name}.txt", text(9))
    texts = {"input_file": f"{PLACE}/text/*.txt"}
    vocab, config = f"{PLACE}/vocab.txt", f"{PLACE}/config.json"
    run("create_vocab", **texts, output_file=vocab, vocab_size=45)
    examples = [f"{PLACE}/records/{name}" for name in ("a.tfrecord", "b.gz")]
    run(
        "create_pretraining_data",
        **texts,
        output_file=",".join(examples),
        vocab_file=vocab,
        max_seq_length=LENGTH,
        max_predictions_per_seq=3,
        dupe_factor=2,
        num_workers=1,
    )
    assert sum(map(records.verify, examples)) > 50
    size = len(files.read_text(vocab).splitlines())
    files.write_text(config, json.dumps({**CONFIG, "vocab_size": size}))
    for steps in (4, 6):
        run(
            "run_pretraining",
            **TRAINING,
            input_file=f"{PLACE}/records/*",
            bert_config_file=config,
            vocab_file=vocab,
            output_dir=os.path.dirname(MODEL),
            do_export=steps == 6,
            eval_steps=2,
            log_steps=2,
            max_predictions_per_seq=3,
            max_eval_steps=3,
            num_train_steps=steps,
            save_checkpoints_steps=2,
            keep_checkpoint_max=2,
        )


def test_pretraining_works_on_remote_files():
    folder = os.path.dirname(MODEL)
    manager = checkpoints.CheckpointManager(folder)
    assert manager.steps() == [4, 6]
    assert manager.latest() == f"{folder}/model.ckpt-6"
    released = open_pretrained(MODEL)
    assert released.head == "pretraining"
    assert released.vocab is not None
    history = files.read_text(f"{folder}/evaluations.jsonl").splitlines()
    assert [json.loads(line)["step"] for line in history] == [2, 4, 6]
    names = contents(folder)
    for start in ("eval/events", "events", "eval_results.txt"):
        assert [name for name in names if name.startswith(start)], names
    assert not [name for name in names if ".tmp-" in name]
    assert_exported(f"{folder}/export")


def fine_tune(script, output_dir, **flags):
    values = {**TRAINING, "init_checkpoint": MODEL, "num_train_epochs": 1}
    run(script, **values, output_dir=output_dir, **flags)
    assert open_pretrained(f"{output_dir}/release").vocab


def test_classification_works_on_remote_files(copy):
    """One training, then two in its folder, and an export."""
    data = copy(f"{PLACE}/sst-2", sentence_files.write, "sst-2")
    folder = f"{PLACE}/classifier"
    task = {"task_name": "sst-2", "data_dir": data}
    more = {"do_predict": True}
    fine_tune("run_classifier", folder, **task, **more, save_best="loss")
    assert contents(folder) >= {
        *("best/best.json", "eval_results.json", "train.tf_record"),
        *("manifest.train.tf_record.json", "glue_submission/SST-2.tsv"),
        *("predictions.tsv", "test_results.tsv"),
    }
    more = {"num_seeds": 2, "overwrite_output_dir": True}
    fine_tune("run_classifier", folder, **task, **more)
    run("run_classifier", task_name="sst-2", output_dir=folder, do_export=True)
    assert_exported(f"{folder}/export")
    names = contents(folder)
    assert "trials.tsv" in names
    old = ("best/", "predictions.tsv")
    assert not [name for name in names if name.startswith(old)]
    assert "predictions.tsv" in contents(f"{folder}.replaced-1")


def test_question_answering_works_on_remote_files(copy):
    def write(folder):
        squad_files.write(folder / "train.json", squad_files.questions(9))
        squad_files.write(folder / "dev.json", squad_files.questions(5, 1))

    data, folder = copy(f"{PLACE}/squad", write), f"{PLACE}/squad_output"
    fine_tune(
        *("run_squad", folder),
        train_file=f"{data}/train.json",
        predict_file=f"{data}/dev.json",
        doc_stride=7,
        max_query_length=5,
        do_predict=True,
    )
    answers = json.loads(files.read_text(f"{folder}/predictions.json"))
    assert len(answers) == 5
    assert {"nbest_predictions.json", "eval_results.txt"} <= contents(folder)


def test_entity_recognition_works_on_remote_files(copy):
    data, folder = copy(f"{PLACE}/conll", conll_files.write), f"{PLACE}/ner"
    fine_tune("run_ner", folder, data_dir=data, do_predict=True)
    lines = files.read_text(f"{folder}/test_predictions.txt").splitlines()
    assert len(lines) == len(conll_files.text_of("test", 5).splitlines())


def test_fill_mask_works_on_remote_files(capsys):
    run("fill_mask", init_checkpoint=MODEL, text="ba [MASK] de")
    assert "[MASK] 1:" in capsys.readouterr().out


@pytest.mark.parametrize("output_format", ["jsonl", "npz"])
def test_extract_features_works_on_remote_files(output_format):
    texts, path = f"{PLACE}/texts.txt", f"{PLACE}/vectors.{output_format}"
    files.write_text(texts, "ba de\ngo ||| mu\n")
    run(
        "extract_features",
        input_file=texts,
        output_file=path,
        output_format=output_format,
        init_checkpoint=MODEL,
        layers="-1",
        max_seq_length=LENGTH,
    )
    assert len(files.open_read(path).read()) > 99


@pytest.mark.parametrize("to", ["huggingface", "keras"])
def test_conversion_works_on_remote_files(to):
    there, back = f"{PLACE}/to_{to}", f"{PLACE}/from_{to}"
    run("convert_checkpoint", input=MODEL, output_dir=there, to=to, verify=True)
    run("convert_checkpoint", input=there, output_dir=back, to="google")
    ours, theirs = open_pretrained(MODEL), open_pretrained(back)
    assert_same_weights(ours.weights, theirs.weights)
