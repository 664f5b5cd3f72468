"""--do_export of every script: exports answer as the script itself predicts.

Scripts run in this process. Writing a SavedModel takes seconds, so most tests
record the model that would be exported and run it; tests/serving writes models
of every kind and serves them.
"""

import contextlib
import json
import os
import re
from collections.abc import Mapping
from typing import NamedTuple

import conll_files
import in_process
import numpy as np
import pytest
import sentence_files
import squad_files
import tensorflow as tf
from fine_tuning_runs import CONFIG, contents, table

from bert_tf import files
from bert_tf.config import BertConfig
from bert_tf.data.records import RecordWriter, encode_batch
from bert_tf.data.schema import pretraining_schema
from bert_tf.heads import (
    BertClassifier,
    BertMultipleChoice,
    BertPretrainer,
    BertSpanLabeler,
    BertTokenClassifier,
)
from bert_tf.interop.checkpoint import Pretrained, write_metadata
from bert_tf.jobs import features, fill_mask, fine_tuning
from bert_tf.modeling import checkpoint_variables
from bert_tf.serving.served import Served
from bert_tf.tasks import datasets
from bert_tf.training import checkpoints
from tests.serving.small_served import assert_likeliest, random_weights

# Shorter than the texts of the tests and than the models' maximum.
LENGTH = 13
TRAINING = {
    "do_train": True,
    "train_batch_size": 4,
    "num_train_epochs": 0.7,
    "learning_rate": 0.01,
    "jit_compile": "false",
}
SQUAD = {"max_seq_length": 29, "doc_stride": 7, "max_query_length": 5}
ASKED = squad_files.questions(7, seed=2)
PREDICTIONS = 3
BLANKS = ("good [MASK] ba", "[MASK][MASK] dull", "be bo", "")


def launch(script, status=0, **given):
    """Runs a script; flags that are None are left out."""
    words = [f"--{k}={v}" for k, v in given.items() if v is not None]
    with in_process.script(script) as run:
        assert run(words) == status


def says(capsys, script, **given):
    """Returns the error message of a script."""
    launch(script, status=1, **given)
    return in_process.the_error(capsys, script)


def write_start(folder, make, words=sentence_files.VOCAB, **facts):
    """Writes a random model whose answers differ; returns its folder."""
    folder.mkdir(parents=True)
    config = BertConfig.from_dict({**CONFIG, "vocab_size": len(words)})
    model = random_weights(make(config))
    prefix = str(folder / "bert_model.ckpt")
    variables = checkpoint_variables(model)
    checkpoints.write(prefix, {k: v.numpy() for k, v in variables.items()})
    facts = Pretrained(prefix, {}, config, tuple(words), True, **facts)
    write_metadata(str(folder), facts)
    return folder


def versions(folder):
    """Returns the versions in a folder, which contains nothing else."""
    names = sorted(int(path.name) for path in folder.iterdir())
    return [folder / str(name) for name in names]


class Export(NamedTuple):
    """The arguments of `serving.export.export`."""

    served: Served
    export_dir: str
    name: str
    metrics: Mapping[str, float] | None
    source: str | None


@contextlib.contextmanager
def recorded_exports():
    """Records exports instead of writing them."""
    found = []

    def export(served, export_dir, *, name="bert", metrics=None, source=None):
        found.append(Export(served, str(export_dir), name, metrics, source))
        return os.path.join(export_dir, "1")

    with pytest.MonkeyPatch.context() as patch:
        for module in (fine_tuning, features, fill_mask):
            patch.setattr(module, "export", export)
        yield found


@pytest.fixture
def exports():
    with recorded_exports() as found:
        yield found


def ask(model, **texts):
    """Returns the answers of a `Served`, or of the folder of a version."""
    texts = {name: tf.constant(values) for name, values in texts.items()}
    if isinstance(model, Served):
        answer = model.answer(texts)
    else:
        loaded = tf.saved_model.load(str(model))
        answer = loaded.signatures["serving_default"](**texts)
    return {name: values.numpy() for name, values in answer.items()}


def words_of(values):
    """Decodes arrays of bytes to lists of strings."""
    return np.char.decode(values.astype(bytes), "utf-8").tolist()


def card_of(version):
    text = (version / "assets.extra" / "model_card.json").read_text("utf-8")
    return json.loads(text)


def results(folder):
    scores = json.loads((folder / "eval_results.json").read_text("utf-8"))
    del scores["train_seconds"], scores["weights_sha256"]
    return scores


# Each script trains and exports ----------------------------------------------

# Their exports are written, those of other scripts recorded.
WRITTEN = ("run_classifier", "run_pretraining")


@pytest.fixture(scope="module")
def finish(tmp_path_factory):
    """Trains with a script once; returns its flags and the export."""
    done = {}

    def finish(script):
        if script not in done:
            folder = tmp_path_factory.mktemp(script)
            given = {**TRAINING, **PREPARE[script](folder)}
            given["output_dir"] = folder / "out"
            if script in WRITTEN:
                launch(script, do_export=True, **given)
                done[script] = given, None
            else:
                with recorded_exports() as found:
                    launch(script, do_export=True, **given)
                [export] = found
                assert export.export_dir == f"{folder}/out/export"
                assert export.source == str(given["init_checkpoint"])
                done[script] = given, export
        return done[script]

    return finish


def prepare_classifier(folder):
    labels = sentence_files.LAYOUTS["tsv"][0]
    start = write_start(
        folder / "start",
        lambda config: BertClassifier(config, len(labels)),
        labels=labels,
        head="classifier",
        problem_type="single_label_classification",
    )
    return {
        "task_name": "custom",
        "data_dir": sentence_files.write(folder / "data", "tsv"),
        "init_checkpoint": start,
        "max_seq_length": LENGTH,
        "do_eval": True,
        "do_predict": True,
    }


def prepare_ner(folder):
    labels = conll_files.LABELS
    start = write_start(
        folder / "start",
        lambda config: BertTokenClassifier(config, len(labels)),
        labels=labels,
        head="token",
    )
    return {
        "data_dir": conll_files.write(folder / "data"),
        "init_checkpoint": start,
        "max_seq_length": LENGTH,
        "do_eval": True,
        "do_predict": True,
    }


def prepare_squad(folder):
    start = write_start(
        folder / "start", BertSpanLabeler, squad_files.VOCAB, head="span"
    )
    train = squad_files.questions(7, seed=1, impossible=3)
    asked = squad_files.write(folder / "dev.json", ASKED, "2.0")
    return {
        **SQUAD,
        "init_checkpoint": start,
        "train_file": squad_files.write(folder / "train.json", train, "2.0"),
        "predict_file": asked,
        "version_2_with_negative": True,
        "do_predict": True,
    }


def prepare_pretraining(folder):
    start = write_start(folder / "start", BertPretrainer, head="pretraining")
    return {
        "input_file": write_records(folder / "a.tfrecord"),
        "init_checkpoint": start,
        "vocab_file": start / "vocab.txt",
        "max_seq_length": LENGTH,
        "max_predictions_per_seq": PREDICTIONS,
        "num_train_epochs": None,
        "num_train_steps": 2,
        "num_warmup_steps": 0,
        "do_eval": True,
    }


def write_records(path, count=9):
    """Writes random examples and a manifest with their casing."""
    draw = np.random.default_rng(1)
    size = len(sentence_files.VOCAB)
    batch = {
        "input_ids": draw.integers(0, size, [count, LENGTH]),
        "input_mask": np.ones([count, LENGTH], int),
        "segment_ids": draw.integers(0, 2, [count, LENGTH]),
        "masked_lm_positions": draw.integers(0, LENGTH, [count, PREDICTIONS]),
        "masked_lm_ids": draw.integers(0, size, [count, PREDICTIONS]),
        "masked_lm_weights": np.ones([count, PREDICTIONS], "float32"),
        "next_sentence_labels": draw.integers(0, 2, [count, 1]),
    }
    schema = pretraining_schema(LENGTH, PREDICTIONS)
    with RecordWriter(str(path)) as writer:
        writer.write_all(encode_batch(schema, batch))
    casing = {"do_lower_case": True, "strip_accents": None}
    manifest = json.dumps({"settings": casing})
    files.write_text(files.manifest_path(str(path)), manifest)
    return path


PREPARE = {
    "run_classifier": prepare_classifier,
    "run_ner": prepare_ner,
    "run_squad": prepare_squad,
    "run_pretraining": prepare_pretraining,
}


def test_classes_are_those_of_the_predictions(finish):
    given, _ = finish("run_classifier")
    folder = given["output_dir"]
    version = versions(folder / "export")[0]
    assert_classes(version, folder)
    card = card_of(version)
    assert (card["name"], card["kind"]) == ("custom", "classifier")
    assert card["source"] == given["init_checkpoint"].name
    assert card["metrics"] == pytest.approx(results(folder))
    assert card["encoding"]["max_seq_length"] == LENGTH


def assert_classes(version, folder, *names):
    """Compares labels and probabilities with `predictions.tsv`."""
    header, *rows = table(folder / "predictions.tsv")
    columns = dict(zip(header, zip(*rows, strict=True), strict=True))
    texts = {name: columns[name] for name in names or ("text",)}
    answer = ask(version, **texts)
    [labels] = {tuple(labels) for labels in words_of(answer["labels"])}
    titles = [f"probability_{label}" for label in labels]
    assert titles == header[-len(titles) :]
    expected = np.array([row[-len(titles) :] for row in rows], float)
    for chosen in (words_of(answer["label"]), columns["prediction"]):
        numbers = [labels.index(label) for label in chosen]
        assert_likeliest(np.array(numbers), expected)
    np.testing.assert_allclose(answer["probabilities"], expected, atol=1e-4)
    np.testing.assert_allclose(
        answer["probability"], expected.max(axis=1), atol=1e-4
    )
    # Equal answers would prove nothing.
    assert np.ptp(answer["probability"]) > 0.01


@pytest.mark.slow
def test_tags_are_those_of_the_predictions(finish):
    given, export = finish("run_ner")
    folder = given["output_dir"]
    assert_tags(export.served, folder)
    assert (export.name, export.served.kind) == ("ner", "tagger")
    assert export.served.labels == tuple(conll_files.LABELS)
    assert export.metrics == pytest.approx(results(folder))


def assert_tags(served, folder):
    """Compares tags with the predictions."""
    blocks = (folder / "test_predictions.txt").read_text("utf-8").split("\n\n")
    sentences = [
        [line.split(" ") for line in block.splitlines()]
        for block in blocks
        if "-DOCSTART-" not in block
    ]
    texts = [" ".join(line[0] for line in lines) for lines in sentences]
    answer = ask(served, text=texts)
    counts = [len(lines) for lines in sentences]
    assert max(counts) > LENGTH
    assert answer["num_words"].tolist() == counts
    tags = [
        row[:count]
        for row, count in zip(words_of(answer["tags"]), counts, strict=True)
    ]
    assert tags == [[line[-1] for line in lines] for lines in sentences]


@pytest.mark.slow
def test_spans_are_those_of_the_predictions(finish):
    given, export = finish("run_squad")
    folder = given["output_dir"]
    answer = ask(
        export.served,
        question=[question.question for question in ASKED],
        context=[question.context for question in ASKED],
    )
    written = {
        name: [*json.loads((folder / f"{name}.json").read_text()).values()]
        for name in ("predictions", "nbest_predictions", "null_odds")
    }
    np.testing.assert_allclose(
        answer["null_odds"], written["null_odds"], atol=1e-3
    )
    chances = [
        {entry["text"]: entry["probability"] for entry in nbest}
        for nbest in written["nbest_predictions"]
    ]
    best = [max(of_question.values()) for of_question in chances]
    for texts in (
        written["predictions"],
        words_of(answer["answer"]),
        words_of(answer["nbest_answers"][:, 0]),
    ):
        # Either of two almost equal answers may be the first.
        found = [c[text] for c, text in zip(chances, texts, strict=True)]
        np.testing.assert_allclose(found, best, atol=1e-3)
    np.testing.assert_allclose(
        answer["nbest_probabilities"][:, 0], best, atol=1e-4
    )
    assert (export.name, export.served.kind) == ("squad", "question answering")
    assert lengths_of(export) == SQUAD
    assert not export.metrics


def lengths_of(export):
    return {name: getattr(export.served.encoding, name) for name in SQUAD}


@pytest.mark.slow
def test_words_are_those_of_fill_mask(finish, capsys, tmp_path):
    """The exports of run_pretraining.py and fill_mask.py are equal."""
    given, _ = finish("run_pretraining")
    folder = given["output_dir"]
    version = versions(folder / "export")[0]
    card = card_of(version)
    assert (card["name"], card["kind"]) == ("bert", "masked language model")
    assert card["metrics"]["global_step"] == 2
    release = {"init_checkpoint": folder / "release"}
    launch("fill_mask", do_export=True, export_dir=tmp_path / "new", **release)
    [other] = versions(tmp_path / "new")
    assert card_of(other)["weights"] == card["weights"]
    answer, others = (ask(path, text=BLANKS) for path in (version, other))
    assert words_of(others["words"]) == words_of(answer["words"])
    assert answer["num_blanks"].tolist() == [1, 2, 0, 0]
    capsys.readouterr()
    launch("fill_mask", text=BLANKS[1], **release)
    filled = [
        re.findall(r" (\S+) \((\S+)%\)", line)
        for line in capsys.readouterr().out.splitlines()[1:]
    ]
    assert words_of(answer["words"][1]) == [
        [word for word, _ in blank] for blank in filled
    ]
    expected = [[float(share) for _, share in blank] for blank in filled]
    shares = answer["probabilities"][1] * 100
    np.testing.assert_allclose(shares, expected, atol=0.051)


# Exporting an existing model -------------------------------------------------

NEEDED = {
    "run_classifier": ["task_name"],
    "run_pretraining": [
        *("input_file", "init_checkpoint", "vocab_file"),
        *("max_predictions_per_seq", "do_eval"),
    ],
    "run_ner": [],
    "run_squad": [],
}


@pytest.mark.parametrize(
    "script",
    [
        "run_classifier",
        *(
            pytest.param(script, marks=pytest.mark.slow)
            for script in ("run_ner", "run_squad", "run_pretraining")
        ),
    ],
)
def test_a_model_is_exported_again_without_data(finish, script):
    """There is one more version, equal to the first; other files are kept."""
    given, export = finish(script)
    folder = given["output_dir"]
    before = contents(folder)
    again = {name: given[name] for name in ["output_dir", *NEEDED[script]]}
    if script in WRITTEN:
        earlier = versions(folder / "export")
        launch(script, do_export=True, **again)
        *others, last = versions(folder / "export")
        assert others == earlier
        after = contents(folder)
        assert {path: after[path] for path in before} == before
        assert all(last in path.parents for path in {*after} - {*before})
        # The weights too, by their checksum.
        assert card_of(last) == card_of(others[0])
        model = others[0]
        inputs = tf.saved_model.load(str(last)).signatures["serving_default"]
        names = inputs.structured_input_signature[1]
    else:
        with recorded_exports() as found:
            launch(script, do_export=True, **again)
        assert contents(folder) == before
        [new] = found
        assert (new.name, new.source) == (export.name, export.source)
        assert new.metrics == export.metrics
        last, model, names = new.served, export.served, export.served.inputs
    texts = ["good ba be bo", "dull [MASK] where mu?", ""]
    ours, theirs = (
        ask(one, **dict.fromkeys(names, texts)) for one in (last, model)
    )
    assert ours.keys() == theirs.keys()
    for name, values in ours.items():
        np.testing.assert_array_equal(values, theirs[name], err_msg=name)


# Models that were not trained here -------------------------------------------


@pytest.fixture
def answered(tmp_path, exports):
    """Predicts with and exports a random model of any kind of problem."""

    def answered(task, make, problem_type=None, head="classifier", **given):
        labels = sentence_files.LAYOUTS[task][0]
        labels = given.pop("labels", labels)
        start = write_start(
            tmp_path / "start",
            make,
            labels=labels,
            head=head,
            problem_type=problem_type,
        )
        launch(
            "run_classifier",
            data_dir=sentence_files.write(tmp_path / "data", task),
            init_checkpoint=start,
            output_dir=tmp_path / "out",
            export_dir=tmp_path / "models" / "mine",
            max_seq_length=LENGTH,
            jit_compile="false",
            do_predict=True,
            do_export=True,
            **given,
        )
        [export] = exports
        assert export.export_dir == f"{tmp_path}/models/mine"
        return export.served, tmp_path / "out"

    return answered


@pytest.mark.slow
def test_pairs(answered):
    served, folder = answered(
        "csv",
        lambda config: BertClassifier(config, 2),
        "single_label_classification",
        task_name="custom",
        text_a_column="first",
        text_b_column="3",
        id_column="name",
    )
    assert_classes(served, folder, "text_a", "text_b")


@pytest.mark.slow
def test_multiple_choice(answered, tmp_path):
    served, folder = answered(
        "swag", BertMultipleChoice, head="choice", task_name="swag"
    )
    [part] = datasets.find("swag").split("test", str(tmp_path / "data"))
    asked = part.read()
    answer = ask(
        served,
        context=[example.text_a for example in asked],
        choices=[example.choices for example in asked],
    )
    expected = table(folder / "test_results.tsv")
    np.testing.assert_allclose(
        answer["probabilities"], np.array(expected, float), atol=1e-5
    )
    assert_likeliest(answer["choice"], np.array(expected, float))
    header, *rows = table(folder / "predictions.tsv")
    for row, example in zip(rows, asked, strict=True):
        assert row[header.index("choice")] in example.choices
    assert words_of(answer["choice_text"]) == [
        example.choices[number]
        for example, number in zip(asked, answer["choice"], strict=True)
    ]
    assert len({*answer["choice"].tolist()}) > 1


@pytest.mark.slow
def test_numbers(answered):
    served, folder = answered(
        "regression",
        lambda config: BertClassifier(config, 1),
        "regression",
        task_name="custom",
        problem="regression",
        labels=None,
    )
    header, *rows = table(folder / "predictions.tsv")
    texts, numbers = (
        [row[header.index(name)] for row in rows]
        for name in ("text", "prediction")
    )
    answer = ask(served, text=texts)
    np.testing.assert_allclose(
        answer["score"], np.array(numbers, float), atol=1e-4
    )
    assert np.ptp(answer["score"]) > 0.1


@pytest.mark.slow
def test_several_labels(answered):
    served, folder = answered(
        "multi_label",
        lambda config: BertClassifier(config, 2),
        "multi_label_classification",
        task_name="custom",
        problem="multi_label",
        label_separator=";",
        labels=("rude", "toxic"),
    )
    header, *rows = table(folder / "predictions.tsv")
    answer = ask(served, text=[row[header.index("text")] for row in rows])
    expected = np.array([row[-2:] for row in rows], float)
    np.testing.assert_allclose(answer["probabilities"], expected, atol=1e-4)
    is_clear = np.abs(expected - 0.5) > 1e-3
    present = [row[header.index("prediction")].split(",") for row in rows]
    written = [
        [name in names for name in ("rude", "toxic")] for names in present
    ]
    assert (answer["is_present"] == np.array(written))[is_clear].all()


@pytest.mark.slow
def test_tags_from_a_frozen_encoder(tmp_path, exports):
    given = {**TRAINING, **prepare_ner(tmp_path), "mode": "feature_based"}
    given |= {"feature_layers": "sum_all", "lstm_size": 5}
    folder = tmp_path / "out"
    launch("run_ner", do_export=True, output_dir=folder, **given)
    assert_tags(exports[0].served, folder)


@pytest.mark.slow
def test_a_model_trained_on_two_devices_with_gradient_checkpointing(tmp_path):
    """It is exported for one device."""
    given = {**TRAINING, **prepare_classifier(tmp_path), "num_seeds": 2}
    given |= {"gradient_checkpointing": True}
    given |= {"distribution_strategy": "mirrored"}
    folder = tmp_path / "out"
    launch("run_classifier", do_export=True, output_dir=folder, **given)
    [version] = versions(folder / "export")
    assert_classes(version, folder)
    assert card_of(version)["metrics"] == pytest.approx(results(folder))


@pytest.mark.slow
def test_embeddings_are_those_of_the_file(tmp_path, exports):
    start = write_start(tmp_path / "start", BertPretrainer, head="pretraining")
    texts = ["good ba", "bad " * 20, "", "dull be, bo?"]
    (tmp_path / "texts").write_text("\n".join(texts) + "\n", encoding="utf-8")
    launch(
        "extract_features",
        init_checkpoint=start,
        input_file=tmp_path / "texts",
        output_file=tmp_path / "out.npz",
        output_format="npz",
        pooling="mean",
        layers="-1",
        max_seq_length=LENGTH,
        do_export=True,
        export_dir=tmp_path / "export",
    )
    [export] = exports
    assert export.source == str(start)
    answer = ask(export.served, text=texts)
    with np.load(tmp_path / "out.npz") as arrays:
        np.testing.assert_allclose(answer["-1"], arrays["-1"], atol=1e-5)


# Options from the metadata of the model --------------------------------------

# Optional flags of extract_features.py.
OPTIONAL = dict.fromkeys(("input_file", "output_file", "layers"))


def note(start, **facts):
    """Adds to the metadata of a release."""
    path = start / "bert_tf.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | facts))


def test_spans_have_the_lengths_of_training(prepared, exports):
    given = prepared("run_squad")
    given = {name: given[name] for name in ("init_checkpoint", "output_dir")}
    note(given["init_checkpoint"], **SQUAD, version_2_with_negative=True)
    launch("run_squad", do_export=True, **given)
    launch("run_squad", do_export=True, doc_stride=3, **given)
    assert [lengths_of(export) for export in exports] == [
        SQUAD,
        {**SQUAD, "doc_stride": 3},
    ]
    assert all(export.served.rules.with_negative for export in exports)


@pytest.mark.parametrize(
    "script", ["run_pretraining", "extract_features", "fill_mask"]
)
def test_the_length_is_that_of_training(prepared, exports, script):
    given = {**prepared(script), "do_eval": None, "max_seq_length": None}
    if script == "extract_features":
        given |= OPTIONAL
    note(given["init_checkpoint"], max_seq_length=LENGTH)
    launch(script, do_export=True, **given)
    [export] = exports
    assert export.served.encoding.max_seq_length == LENGTH


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ({}, {"pooled_output", "mean"}),
        ({"layers": "0"}, {"num_tokens", "tokens", "0"}),
        ({"layers": "-1,all", "pooling": "max"}, {"-1", "layer_0"}),
    ],
)
def test_exports_the_requested_layers(prepared, exports, given, names):
    """The default of the script, four layers, is more than the model has."""
    lone = {**prepared("extract_features"), **OPTIONAL, **given}
    launch("extract_features", do_export=True, **lone)
    [export] = exports
    assert ask(export.served, text=["good"]).keys() == names


# Errors leave existing exports unchanged ------------------------------------


@pytest.fixture
def prepared(tmp_path):
    """Returns the flags of a valid run in a new folder."""

    def prepared(script):
        if script in PREPARE:
            return {**PREPARE[script](tmp_path), "output_dir": tmp_path / "out"}
        start = write_start(tmp_path / "start", BertPretrainer)
        given = {"init_checkpoint": start, "export_dir": tmp_path / "export"}
        if script == "extract_features":
            texts = tmp_path / "texts"
            texts.write_text("good\n")
            given |= {"input_file": texts, "output_file": tmp_path / "out"}
            # The model has one layer.
            given |= {"max_seq_length": LENGTH, "layers": "-1"}
        return given

    return prepared


@pytest.mark.parametrize("script", [*PREPARE, "extract_features", "fill_mask"])
def test_an_unusable_export_dir_is_found_first(
    prepared, capsys, tmp_path, script
):
    """Before anything is trained or computed."""
    given = prepared(script)
    given["export_dir"] = tmp_path / "occupied"
    given["export_dir"].write_text("mine")
    if script in PREPARE:
        given = {**TRAINING, **given}
    line = says(capsys, script, do_export=True, **given)
    assert f"Cannot write the export to {tmp_path}/occupied: " in line
    assert given["export_dir"].read_text() == "mine"
    assert not list((tmp_path / "out").rglob("*"))


@pytest.mark.parametrize("script", [*PREPARE, "extract_features", "fill_mask"])
def test_a_missing_vocabulary(prepared, capsys, tmp_path, script):
    given = {**prepared(script), "vocab_file": None}
    (given["init_checkpoint"] / "vocab.txt").unlink()
    line = says(capsys, script, do_export=True, **given)
    assert "ive --vocab_file" in line
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "export").exists()


def test_labels_with_line_breaks_are_found_before_training(
    prepared, capsys, tmp_path
):
    given = {**TRAINING, **prepared("run_classifier"), "labels": "a\u2028b,c"}
    line = says(capsys, "run_classifier", do_export=True, **given)
    assert r"labels.txt: name 0, 'a\u2028b', has several lines" in line
    assert not (tmp_path / "out").exists()


def test_refuses_models_of_another_task(finish, capsys, tmp_path):
    given, _ = finish("run_classifier")
    folder = given["output_dir"]
    before = contents(folder)
    start, out = given["init_checkpoint"], {"output_dir": folder}

    def refuses(message, script, **more):
        line = says(capsys, script, do_export=True, **more)
        assert message in line

    elsewhere = {
        "output_dir": tmp_path / "new",
        "export_dir": folder / "export",
        "init_checkpoint": start,
        "max_seq_length": LENGTH,
    }
    message = "is a model of another task: "
    refuses(message, "run_ner", labels="O,B-X,I-X", **elsewhere)
    refuses(message, "run_squad", **elsewhere | SQUAD)
    refuses(message, "run_classifier", task_name="sts-b", **elsewhere)
    assert not list((tmp_path / "new").rglob("*"))
    elsewhere = {"export_dir": folder / "export", "init_checkpoint": start}
    refuses("has no masked-LM head", "fill_mask", **elsewhere)
    refuses("its head is classifier, not span", "run_squad", **SQUAD, **out)
    # Not a message about lengths or labels, which are correct.
    refuses("head is classifier, not span", "run_squad", **out)
    refuses("head is classifier, not token", "run_ner", **out)
    wanted = "holds a run with "
    out["task_name"] = "cola"
    refuses(f"{wanted}task ", "run_classifier", **out)
    out |= {"task_name": "custom", "text_b_column": "b"}
    refuses(f"{wanted}", "run_classifier", **out)
    assert contents(folder) == before


def test_refuses_another_version_of_squad(prepared, capsys, tmp_path):
    folder = tmp_path / "out"
    prepared("run_squad")["init_checkpoint"].rename(tmp_path / "release")
    folder.mkdir()
    (tmp_path / "release").rename(folder / "release")
    record = {"facts": {"task": "squad", "version_2_with_negative": True}}
    (folder / "fine_tuning.json").write_text(json.dumps(record))
    before = contents(folder)
    wish = {"version_2_with_negative": False, "do_export": True, **SQUAD}
    line = says(capsys, "run_squad", output_dir=folder, **wish)
    assert "with version_2_with_negative true" in line
    assert contents(folder) == before


def test_a_missing_checkpoint(prepared, capsys, tmp_path):
    given = prepared("run_pretraining")
    start = given.pop("init_checkpoint")
    given["bert_config_file"] = start / "bert_config.json"
    given["do_export"] = True
    line = says(capsys, "run_pretraining", **given)
    assert "out to evaluate and export. Name one by --init_checkpoint" in line
    line = says(capsys, "run_pretraining", **{**given, "do_eval": None})
    assert "out to export. Name one by --init_checkpoint" in line
    assert not (tmp_path / "out").exists()


def test_only_an_export_needs_no_data(prepared, capsys, tmp_path):
    given = {**prepared("run_classifier"), "data_dir": None}
    line = says(capsys, "run_classifier", do_export=True, **given)
    assert "--data_dir is required" in line
    given |= {"do_eval": None, "do_predict": None}
    given["save_best"] = "mood"
    line = says(capsys, "run_classifier", do_export=True, **given)
    assert "--save_best must be one of eval_accuracy, eval_macro_f1, " in line
    facts = tmp_path / "start" / "bert_tf.json"
    facts.write_text('{"do_lower_case": true}')
    line = says(capsys, "run_classifier", do_export=True, **given)
    assert "--labels, or --data_dir with a training file" in line
    assert not (tmp_path / "out").exists()


def test_records_with_unknown_casing(prepared, capsys, tmp_path):
    given = {**prepared("run_pretraining"), "do_eval": None}
    line = says(capsys, "run_pretraining", **given)
    assert "one or several of --do_train, --do_eval, --do_export" in line
    files.remove(files.manifest_path(str(given["input_file"])))
    line = says(capsys, "run_pretraining", do_export=True, **given)
    assert "--do_export needs the casing" in line
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("script", "changes", "message"),
    [
        ("fill_mask", {"export_dir": None}, "--do_export needs --export_dir"),
        ("fill_mask", {"text": "[MASK]"}, "--do_export and --text exclude"),
        ("fill_mask", {"top_k": 0}, "top_k"),
        (
            "extract_features",
            {"export_dir": None},
            "--do_export needs --export_dir",
        ),
        (
            "extract_features",
            {"input_file": None},
            "--input_file must be given",
        ),
        (
            "extract_features",
            {"output_file": None},
            "--output_file must be given",
        ),
    ],
)
def test_refuses_contradicting_flags(
    prepared, capsys, tmp_path, script, changes, message
):
    given = {**prepared(script), **changes}
    assert message in says(capsys, script, do_export=True, **given)
    assert not list(tmp_path.glob("export/*"))
    assert not (tmp_path / "out").exists()
