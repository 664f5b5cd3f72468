"""--do_export of every script: exports answer as the script itself predicts.

Writing a SavedModel takes seconds, so most tests record the model that would be
exported and run it; tests/serving writes models of every kind.
"""

import contextlib
import functools
import json
import os
import shutil
import types

import conll_files
import fine_tuning_runs
import in_process
import numpy as np
import pytest
import sentence_files
import small_pretraining
import squad_files
import tensorflow as tf
from fine_tuning_runs import contents, table

from bert_tf.base import files
from bert_tf.jobs import trainings
from bert_tf.kinds.masked_words import job as fill_mask
from bert_tf.kinds.vectors import features_job as features
from bert_tf.modeling import heads
from tests.serving.small_served import assert_likeliest, random_weights

pytestmark = pytest.mark.usefixtures("eager_fixtures", "eagerly")

# Shorter than the texts of the tests and than the models' maximum.
LENGTH = 13
TRAINING = {
    "do_train": True,
    "train_batch_size": 4,
    "num_train_epochs": 0.7,
    "learning_rate": 0.01,
    "jit_compile": "false",
}
ANSWERS = {"max_seq_length": LENGTH, "do_eval": True, "do_predict": True}
SQUAD = {"max_seq_length": 29, "doc_stride": 7, "max_query_length": 5}
ASKED = squad_files.questions(7, seed=2)


def launch(script, status=0, **given):
    """Runs a script; flags that are None are left out."""
    words = [f"--{k}={v}" for k, v in given.items() if v is not None]
    with in_process.script(script) as run:
        assert run(words) == status


@contextlib.contextmanager
def recorded_exports():
    """Records exports, which are not written."""
    found = []

    def export(served, export_dir, **more):
        options = {"name": "bert", "metrics": None, "source": None, **more}
        found.append(types.SimpleNamespace(served=served, **options))
        found[-1].export_dir = str(export_dir)
        return os.path.join(export_dir, "1")

    with pytest.MonkeyPatch.context() as patch:
        for module in (trainings, features, fill_mask):
            patch.setattr(module, "export", export)
        yield found


def exported(script, **given):
    """Runs a script and returns its export, which is only recorded."""
    with recorded_exports() as found:
        launch(script, do_export=True, **given)
    [export] = found
    return export


def ask(served, **texts):
    """Returns the answers of a `Served`."""
    texts = {name: tf.constant(values) for name, values in texts.items()}
    answer = served.answer(texts)
    return {name: values.numpy() for name, values in answer.items()}


def decoded(values):
    """Decodes arrays of bytes to lists of strings."""
    return np.char.decode(values.astype(bytes), "utf-8").tolist()


def write_start(folder, make, words=sentence_files.VOCAB, **facts):
    """Writes a random model whose answers differ; returns its folder."""
    model = random_weights(make(fine_tuning_runs.config_of(words)))
    return fine_tuning_runs.write_start(folder / "start", model, words, **facts)


def classifier_flags(folder):
    labels, _ = sentence_files.LAYOUTS["tsv"]
    make = functools.partial(heads.BertClassifier, num_labels=len(labels))
    facts = {"head": "classifier", "labels": labels}
    facts["problem_type"] = "single_label_classification"
    return {
        "task_name": "custom",
        "data_dir": sentence_files.write(folder / "data", "tsv"),
        "init_checkpoint": write_start(folder, make, **facts),
        **ANSWERS,
    }


def ner_flags(folder):
    labels = conll_files.LABELS
    make = functools.partial(heads.BertTokenClassifier, num_labels=len(labels))
    start = write_start(folder, make, labels=labels, head="token")
    data = conll_files.write(folder / "data")
    return {"data_dir": data, "init_checkpoint": start, **ANSWERS}


def squad_flags(folder):
    words, train = squad_files.VOCAB, squad_files.questions(7, 1, impossible=3)
    make = heads.BertSpanLabeler
    return {
        **SQUAD,
        "init_checkpoint": write_start(folder, make, words, head="span"),
        "train_file": squad_files.write(folder / "train.json", train, "2.0"),
        "predict_file": squad_files.write(folder / "dev.json", ASKED, "2.0"),
        "version_2_with_negative": True,
        "do_predict": True,
    }


def pretraining_flags(folder):
    start = write_start(folder, heads.BertPretrainer, head="pretraining")
    records = str(folder / "a.tfrecord")
    small_pretraining.write(records, small_pretraining.examples(9))
    casing = {"do_lower_case": True, "strip_accents": None}
    manifest = json.dumps({"settings": casing})
    files.write_text(files.manifest_path(records), manifest)
    return {
        "input_file": records,
        "init_checkpoint": start,
        "vocab_file": start / "vocab.txt",
        "max_seq_length": small_pretraining.LENGTH,
        "max_predictions_per_seq": small_pretraining.PREDICTIONS,
        "num_train_epochs": None,
        "num_train_steps": 2,
        "num_warmup_steps": 0,
        "do_eval": True,
    }


def fill_mask_flags(folder):
    start = write_start(folder, heads.BertPretrainer)
    return {"init_checkpoint": start, "export_dir": folder / "export"}


def features_flags(folder):
    (folder / "texts").write_text("good ba\n" + "bad " * 20 + "\n\ndull be, bo")
    return {
        **fill_mask_flags(folder),
        "input_file": folder / "texts",
        "output_file": folder / "out" / "features",
        "max_seq_length": LENGTH,
        # The model has one layer.
        "layers": "-1",
    }


TRAINED = {
    "run_classifier": classifier_flags,
    "run_ner": ner_flags,
    "run_squad": squad_flags,
    "run_pretraining": pretraining_flags,
}
SCRIPTS = {
    **TRAINED,
    "extract_features": features_flags,
    "fill_mask": fill_mask_flags,
}


@pytest.fixture
def prepared(tmp_path):
    """Returns the flags of a valid run in a new folder."""

    def prepared(script):
        given = SCRIPTS[script](tmp_path)
        if script in TRAINED:
            given["output_dir"] = tmp_path / "out"
        return given

    return prepared


@pytest.fixture(scope="module")
def finish(tmp_path_factory):
    """Trains with a script once; returns its flags and the export."""

    @functools.cache
    def finish(script):
        folder = tmp_path_factory.mktemp(script)
        given = {**TRAINING, **TRAINED[script](folder)}
        given["output_dir"] = folder / "out"
        with recorded_exports() as found:
            launch(script, do_export=True, **given)
        [export] = found
        assert export.export_dir == f"{folder}/out/export"
        assert export.source == str(given["init_checkpoint"])
        return given, export

    return finish


def assert_metrics(export, folder):
    scores = json.loads((folder / "eval_results.json").read_text("utf-8"))
    del scores["train_seconds"], scores["weights_sha256"]
    assert export.metrics == pytest.approx(scores)


def test_a_classifier_answers_as_the_predictions(finish):
    given, export = finish("run_classifier")
    folder = given["output_dir"]
    header, *rows = table(folder / "predictions.tsv")
    columns = dict(zip(header, zip(*rows, strict=True), strict=True))
    names = [name for name in header if name.startswith("probability_")]
    expected = np.array([columns[name] for name in names], float).T
    answer = ask(export.served, text=columns["text"])
    [labels] = {tuple(labels) for labels in decoded(answer["labels"])}
    assert names == [f"probability_{label}" for label in labels]
    for chosen in (decoded(answer["label"]), columns["prediction"]):
        numbers = [labels.index(label) for label in chosen]
        assert_likeliest(np.array(numbers), expected)
    np.testing.assert_allclose(answer["probabilities"], expected, atol=1e-4)
    # Equal answers would prove nothing.
    assert np.ptp(answer["probability"]) > 0.01
    assert (export.name, export.served.kind) == ("custom", "classifier")
    assert_metrics(export, folder)
    assert export.served.encoding.max_seq_length == LENGTH


@pytest.mark.slow
def test_tags_are_those_of_the_predictions(finish):
    given, export = finish("run_ner")
    folder = given["output_dir"]
    text = (folder / "test_predictions.txt").read_text("utf-8")
    sentences = [
        [line.split(" ") for line in block.splitlines()]
        for block in text.split("\n\n")
        if "-DOCSTART-" not in block
    ]
    texts = [" ".join(line[0] for line in lines) for lines in sentences]
    answer = ask(export.served, text=texts)
    counts = [len(lines) for lines in sentences]
    assert max(counts) > LENGTH
    assert answer["num_words"].tolist() == counts
    for row, lines in zip(decoded(answer["tags"]), sentences, strict=True):
        assert row[: len(lines)] == [line[-1] for line in lines]
    assert (export.name, export.served.kind) == ("ner", "tagger")
    assert export.served.labels == tuple(conll_files.LABELS)
    assert_metrics(export, folder)


@pytest.mark.slow
def test_spans_are_those_of_the_predictions(finish):
    given, export = finish("run_squad")
    folder = given["output_dir"]
    answer = ask(
        export.served,
        question=[question.question for question in ASKED],
        context=[question.context for question in ASKED],
    )
    odds = json.loads((folder / "null_odds.json").read_text())
    found = answer["null_odds"]
    np.testing.assert_allclose(found, [*odds.values()], atol=1e-3)
    nbest = json.loads((folder / "nbest_predictions.json").read_text())
    best = [max(e["probability"] for e in rows) for rows in nbest.values()]
    found = answer["nbest_probabilities"][:, 0]
    np.testing.assert_allclose(found, best, atol=1e-4)
    assert (export.name, export.served.kind) == ("squad", "question answering")
    assert lengths_of(export) == SQUAD
    assert not export.metrics


def lengths_of(export):
    return {name: getattr(export.served.encoding, name) for name in SQUAD}


@pytest.mark.slow
def test_words_are_those_of_fill_mask(finish, tmp_path):
    """The exports of run_pretraining.py and fill_mask.py are equal."""
    given, export = finish("run_pretraining")
    assert export.served.kind == "masked language model"
    assert export.metrics["global_step"] == 2
    release = str(given["output_dir"] / "release")
    other = exported("fill_mask", export_dir=tmp_path, init_checkpoint=release)
    texts = ["good [MASK] ba", "[MASK][MASK] dull", "be bo", ""]
    answer = ask(export.served, text=texts)
    for name, values in ask(other.served, text=texts).items():
        np.testing.assert_array_equal(values, answer[name])
    assert answer["num_blanks"].tolist() == [1, 2, 0, 0]


SLOW = pytest.mark.slow
OF_PRETRAINING = (
    *("input_file", "init_checkpoint", "vocab_file"),
    *("max_predictions_per_seq", "do_eval"),
)


@pytest.mark.parametrize(
    ("script", "needed"),
    [
        ("run_classifier", ("task_name",)),
        pytest.param("run_ner", (), marks=SLOW),
        pytest.param("run_pretraining", OF_PRETRAINING, marks=SLOW),
    ],
)
def test_a_model_is_exported_again_without_data(finish, script, needed):
    """The second export equals the first; other files are unchanged."""
    given, first = finish(script)
    before = contents(given["output_dir"])
    flags = {name: given[name] for name in ("output_dir", *needed)}
    second = exported(script, **flags)
    assert contents(given["output_dir"]) == before
    for name in ("name", "source", "metrics"):
        assert getattr(second, name) == getattr(first, name)
    texts = ["good ba be bo", "dull [MASK] where mu?", ""]
    asked = dict.fromkeys(first.served.inputs, texts)
    expected = ask(first.served, **asked)
    answer = ask(second.served, **asked)
    assert answer.keys() == expected.keys()
    for name, values in answer.items():
        np.testing.assert_array_equal(values, expected[name], err_msg=name)


def test_vectors_are_those_of_the_file(prepared):
    given = prepared("extract_features")
    given |= {"pooling": "mean", "output_format": "npz"}
    export = exported("extract_features", **given)
    assert export.source == str(given["init_checkpoint"])
    texts = given["input_file"].read_text().split("\n")
    answer = ask(export.served, text=texts)
    with np.load(given["output_file"]) as arrays:
        np.testing.assert_allclose(answer["-1"], arrays["-1"], atol=1e-5)
    given |= dict.fromkeys(("input_file", "output_file", "layers", "pooling"))
    # The default of the script, four layers, is more than the model has.
    export = exported("extract_features", **given)
    answer = ask(export.served, text=["good"])
    assert answer.keys() == {"pooled_output", "mean"}


def note(start, **facts):
    path = start / "bert_tf.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | facts))


def test_the_lengths_are_those_of_training(prepared, tmp_path):
    given = prepared("run_squad")
    given = {name: given[name] for name in ("init_checkpoint", "output_dir")}
    note(given["init_checkpoint"], **SQUAD, version_2_with_negative=True)
    first = exported("run_squad", **given)
    second = exported("run_squad", doc_stride=3, **given)
    assert lengths_of(first) == SQUAD
    assert lengths_of(second) == {**SQUAD, "doc_stride": 3}
    assert first.served.rules.with_negative
    no_files = {"input_file": None, "output_file": None}
    for script, flags in [
        ("run_pretraining", {"do_eval": None}),
        ("extract_features", no_files),
        ("fill_mask", {}),
    ]:
        shutil.rmtree(tmp_path / "start")
        given = {**prepared(script), **flags, "max_seq_length": None}
        note(given["init_checkpoint"], max_seq_length=LENGTH)
        export = exported(script, **given)
        assert export.served.encoding.max_seq_length == LENGTH


def assert_refused(capsys, message, script, **given):
    launch(script, status=1, **{"do_export": True, **given})
    assert message in in_process.the_error(capsys, script)


@pytest.mark.parametrize("script", SCRIPTS)
def test_errors_come_before_training(prepared, capsys, tmp_path, script):
    """An unusable folder and a missing vocabulary."""
    given = prepared(script)
    occupied = given.get("export_dir", tmp_path / "out" / "export")
    occupied.parent.mkdir(exist_ok=True)
    occupied.write_text("mine")
    start = TRAINING if script in TRAINED else {}
    message = f"Cannot write the export to {occupied}: "
    assert_refused(capsys, message, script, **{**start, **given})
    assert occupied.read_text() == "mine"
    occupied.unlink()
    (given["init_checkpoint"] / "vocab.txt").unlink()
    given["vocab_file"] = None
    assert_refused(capsys, "ass --vocab_file", script, **given)
    assert not list((tmp_path / "out").rglob("*"))
    assert not (tmp_path / "export").exists()


@pytest.mark.parametrize(
    ("script", "changes", "message"),
    [
        ("fill_mask", {"text": "[MASK]"}, "--do_export and --text exclude"),
        ("extract_features", {"output_file": None}, "--output_file must be"),
        (
            "run_classifier",
            {**TRAINING, "labels": "a\u2028b,c"},
            r"labels.txt: name 0, 'a\u2028b', has several lines",
        ),
    ],
)
def test_refuses_contradicting_flags(
    prepared, capsys, tmp_path, script, changes, message
):
    assert_refused(capsys, message, script, **{**prepared(script), **changes})
    assert not list(tmp_path.glob("export/*"))
    assert not (tmp_path / "out").exists()


def test_refuses_missing_facts(prepared, capsys, tmp_path):
    """The labels of a classifier; the casing of pre-training."""
    given = prepared("run_classifier")
    given |= {"data_dir": None, "do_eval": None, "do_predict": None}
    facts = given["init_checkpoint"] / "bert_tf.json"
    facts.write_text('{"do_lower_case": true}')
    message = "--labels, or --data_dir with a training file"
    assert_refused(capsys, message, "run_classifier", **given)
    shutil.rmtree(given["init_checkpoint"])
    given = prepared("run_pretraining")
    given["bert_config_file"] = given["init_checkpoint"] / "bert_config.json"
    files.remove(files.manifest_path(str(given["input_file"])))
    message = "--do_export needs the casing"
    assert_refused(capsys, message, "run_pretraining", **given)
    assert not (tmp_path / "out").exists()


def test_refuses_models_of_another_task(finish, capsys, tmp_path):
    given, _ = finish("run_classifier")
    folder = given["output_dir"]
    before = contents(folder)
    run = {"output_dir": folder}
    new = {"output_dir": tmp_path / "new", "max_seq_length": LENGTH}
    new["init_checkpoint"] = given["init_checkpoint"]
    for script, flags, message in [
        ("run_ner", {**new, "labels": "O,B-X,I-X"}, "a model of another task"),
        ("run_classifier", {**new, "task_name": "sts-b"}, "of another task: "),
        # Not a message about lengths, which are correct.
        ("run_squad", run, "head is classifier, not span"),
        ("run_classifier", {**run, "task_name": "cola"}, "a run with task="),
    ]:
        assert_refused(capsys, message, script, **flags)
    assert not [p for p in (tmp_path / "new").rglob("*") if p.is_file()]
    assert contents(folder) == before
