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

from bert_tf import files
from bert_tf.data import records
from bert_tf.pretrained import open_pretrained
from bert_tf.training import checkpoints

pytestmark = pytest.mark.slow

PLACE = "ram://scripts"
LENGTH = 23
CONFIG = {
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 11,
    "max_position_embeddings": 29,
    "type_vocab_size": 2,
}
TRAINING = {
    "max_seq_length": LENGTH,
    "train_batch_size": 4,
    "learning_rate": 0.01,
    "jit_compile": "false",
}
EXPORTED = {
    "saved_model.pb",
    "variables/variables.index",
    "assets.extra/README.md",
    "assets.extra/tf_serving_warmup_requests",
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
    """Runs a script with flags; None omits a flag."""
    words = [f"--{k}={v}" for k, v in values.items() if v is not None]
    with in_process.script(script) as launch:
        assert launch(words) == 0, script


def contents(folder):
    """Returns the relative paths of all files in a folder."""
    return {
        f"{place.removeprefix(folder)}/{name}".lstrip("/")
        for place, _, names in tf.io.gfile.walk(folder)
        for name in names
    }


def copy(source, target):
    """Copies a local folder."""
    for path in source.rglob("*"):
        if path.is_file():
            with files.atomic_writer(
                f"{target}/{path.relative_to(source)}"
            ) as f:
                f.write(path.read_bytes())


def exported(folder):
    """Checks that the newest version in a folder is complete."""
    version = max(tf.io.gfile.listdir(folder)).rstrip("/")
    found = contents(f"{folder}/{version}")
    assert found >= EXPORTED, found


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


@pytest.fixture(scope="module")
def words():
    """A vocabulary that was learned at ram://."""
    for name in ("a", "b"):
        files.write_text(f"{PLACE}/text/{name}.txt", text(9))
    path = f"{PLACE}/vocab.txt"
    run(
        "create_vocab",
        input_file=f"{PLACE}/text/*.txt",
        output_file=path,
        vocab_size=45,
    )
    return path


@pytest.fixture(scope="module")
def examples(words):
    """Records in two files, one of them compressed."""
    paths = [f"{PLACE}/records/{name}" for name in ("a.tfrecord", "b.gz")]
    run(
        "create_pretraining_data",
        input_file=f"{PLACE}/text/*.txt",
        output_file=",".join(paths),
        vocab_file=words,
        max_seq_length=LENGTH,
        max_predictions_per_seq=3,
        dupe_factor=2,
        num_workers=1,
    )
    return paths


@pytest.fixture(scope="module")
def model(words, examples):
    """The folder of a pre-training that was stopped and resumed."""
    config = f"{PLACE}/config.json"
    size = len(files.read_text(words).splitlines())
    files.write_text(config, json.dumps({**CONFIG, "vocab_size": size}))
    folder = f"{PLACE}/model"
    for steps in (4, 6):
        run(
            "run_pretraining",
            **TRAINING,
            input_file=f"{PLACE}/records/*",
            bert_config_file=config,
            vocab_file=words,
            output_dir=folder,
            do_train=True,
            do_eval=True,
            do_export=steps == 6,
            eval_steps=2,
            log_steps=2,
            max_predictions_per_seq=3,
            max_eval_steps=3,
            num_train_steps=steps,
            save_checkpoints_steps=2,
            keep_checkpoint_max=2,
        )
    return folder


def test_pretraining(model, examples):
    assert sum(map(records.verify, examples)) > 50
    manager = checkpoints.CheckpointManager(model)
    assert manager.steps() == [4, 6]
    assert manager.latest() == f"{model}/model.ckpt-6"
    released = open_pretrained(f"{model}/release")
    assert released.head == "pretraining"
    assert released.vocab is not None
    history = files.read_text(f"{model}/evaluations.jsonl").splitlines()
    assert [json.loads(line)["step"] for line in history] == [2, 4, 6]
    names = contents(model)
    for start in ("eval/events", "events", "eval_results.txt"):
        assert [name for name in names if name.startswith(start)], names
    assert not [name for name in names if ".tmp-" in name]
    exported(f"{model}/export")


def fine_tune(script, model, output_dir, **changes):
    run(
        script,
        **TRAINING,
        init_checkpoint=f"{model}/release",
        output_dir=output_dir,
        do_train=True,
        do_eval=True,
        num_train_epochs=1,
        **changes,
    )
    assert open_pretrained(f"{output_dir}/release").vocab


def test_sentences(model, tmp_path):
    """One training, then two in its folder, and an export."""
    data, folder = f"{PLACE}/sst-2", f"{PLACE}/classifier"
    copy(sentence_files.write(tmp_path, "sst-2"), data)
    task = {"task_name": "sst-2", "data_dir": data, "num_workers": 1}
    fine_tune(
        *("run_classifier", model, folder),
        **task,
        do_predict=True,
        save_best="eval_accuracy",
        glue_submission=True,
    )
    assert contents(folder) >= {
        "best/best.json",
        "eval_results.json",
        "glue_submission/SST-2.tsv",
        "manifest.train.tf_record.json",
        "predictions.tsv",
        "test_results.tsv",
        "train.tf_record",
    }
    fine_tune(
        *("run_classifier", model, folder),
        **task,
        num_seeds=2,
        overwrite_output_dir=True,
    )
    run("run_classifier", task_name="sst-2", output_dir=folder, do_export=True)
    exported(f"{folder}/export")
    names = contents(folder)
    assert "trials.tsv" in names
    old = ("overwritten", "best/", "predictions.tsv")
    assert not [name for name in names if name.startswith(old)]


def test_questions(model, tmp_path):
    squad_files.write(tmp_path / "train.json", squad_files.questions(9))
    squad_files.write(tmp_path / "dev.json", squad_files.questions(5, 1))
    copy(tmp_path, f"{PLACE}/squad")
    folder = f"{PLACE}/squad_output"
    fine_tune(
        *("run_squad", model, folder),
        train_file=f"{PLACE}/squad/train.json",
        predict_file=f"{PLACE}/squad/dev.json",
        doc_stride=7,
        max_query_length=5,
        do_predict=True,
    )
    answers = json.loads(files.read_text(f"{folder}/predictions.json"))
    assert len(answers) == 5
    assert {"nbest_predictions.json", "eval_results.txt"} <= contents(folder)


def test_entities(model, tmp_path):
    copy(conll_files.write(tmp_path), f"{PLACE}/conll")
    folder = f"{PLACE}/ner"
    fine_tune(
        *("run_ner", model, folder),
        data_dir=f"{PLACE}/conll",
        do_predict=True,
    )
    lines = files.read_text(f"{folder}/test_predictions.txt").splitlines()
    assert len(lines) == len(conll_files.text_of("test", 5).splitlines())


@pytest.mark.parametrize("output_format", ["jsonl", "npz", "tfrecord"])
def test_features(model, output_format):
    path = f"{PLACE}/texts.txt"
    files.write_text(path, "ba de\ngo ||| mu\n")
    run(
        "extract_features",
        input_file=path,
        output_file=f"{PLACE}/vectors.{output_format}",
        output_format=output_format,
        init_checkpoint=f"{model}/release",
        layers="-1",
        max_seq_length=LENGTH,
    )
    assert len(files.open_read(f"{PLACE}/vectors.{output_format}").read()) > 99


def test_masked_words(model, capsys):
    run(
        "fill_mask",
        init_checkpoint=f"{model}/release",
        text="ba [MASK] de",
    )
    assert "[MASK] 1:" in capsys.readouterr().out


@pytest.mark.parametrize("to", ["google", "huggingface", "keras"])
def test_conversion_there_and_back(model, to):
    folder = f"{PLACE}/to_{to}"
    run(
        "convert_checkpoint",
        input=f"{model}/release",
        output_dir=folder,
        to=to,
        verify=True,
    )
    back = f"{PLACE}/from_{to}"
    run("convert_checkpoint", input=folder, output_dir=back, to="google")
    ours, theirs = open_pretrained(f"{model}/release"), open_pretrained(back)
    assert theirs.weights.shapes == ours.weights.shapes
    for name in ours.weights.shapes:
        assert (theirs.weights[name] == ours.weights[name]).all()


@pytest.mark.parametrize("name", ["attention.html", "attention.png"])
def test_attention(model, name):
    path = f"{PLACE}/{name}"
    run(
        "visualize_attention",
        init_checkpoint=f"{model}/release",
        text="ba de",
        output=path,
    )
    assert len(files.open_read(path).read()) > 999
