"""run_embeddings.py from its command line to its files, in this process."""

import functools

import fine_tuning_runs
import numpy as np
import pytest
import sentence_files
import tensorflow as tf
from fine_tuning_runs import assert_same, error_of, results, weights

import bert_tf
from bert_tf.jobs import trainings

pytestmark = pytest.mark.usefixtures("eager_fixtures", "eagerly")

COUNTS = {"train": 24, "dev": 13, "test": 5}
FLAGS = {
    "task_name": "custom",
    "label_column": "score",
    "max_score": 4,
    "num_train_epochs": 4,
    "train_batch_size": 8,
    "learning_rate": 0.03,
    "pooling": "max",
}
WITHOUT_FILES = {"bert_config_file": None, "vocab_file": None}
# Pairs that belong together.
UNSCORED = {"label_column": None, "max_score": None, "num_train_epochs": 1}


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    """Pairs that are similar if they share a keyword."""
    folder = tmp_path_factory.mktemp("data")
    generator = np.random.default_rng(1)
    for split, count in COUNTS.items():
        lines = ["text_a\ttext_b\tscore\tsame"]
        for number in range(count):
            words = generator.choice(sentence_files.TELLING, 2)
            score = 4 if words[0] == words[1] else 1
            texts = [
                " ".join([word, *sentence_files.FILLERS[:more]])
                for word, more in zip(words, (number % 5, 0), strict=True)
            ]
            lines.append("\t".join([*texts, str(score), "x"]))
        (folder / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture(scope="module")
def run(data_dir, tmp_path_factory):
    """Runs the script with the usual flags and some changes."""
    model = fine_tuning_runs.write_model(
        tmp_path_factory.mktemp("model"), **fine_tuning_runs.WITHOUT_DROPOUT
    )
    return functools.partial(
        *(fine_tuning_runs.run, "run_embeddings"),
        **{**model, **FLAGS, "data_dir": data_dir},
    )


@pytest.fixture(scope="module")
def exported():
    """The models that runs export, which are not written."""
    found = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            trainings, "export", lambda served, *_, **__: found.append(served)
        )
        yield found


@pytest.fixture(scope="module")
def done(run, exported, tmp_path_factory):
    """The folder of a run that does everything."""
    folder = tmp_path_factory.mktemp("done")
    run(folder, do_eval=True, do_predict=True, do_export=True)
    return folder


@pytest.fixture(scope="module")
def served(done, exported):
    """The model that it exports."""
    return exported.pop()


def rows(path):
    header, *lines = fine_tuning_runs.table(path)
    return [dict(zip(header, line, strict=True)) for line in lines]


def test_the_release_is_a_text_embedder(done, served, data_dir):
    """It has the scores and the cosines of the files."""
    model = bert_tf.TextEmbedder.from_pretrained(done / "release")
    assert (model.pooling, model.normalize) == ("max", True)
    assert model.max_seq_length == fine_tuning_runs.LENGTH
    dev = rows(data_dir / "dev.tsv")
    pairs = [(row["text_a"], row["text_b"]) for row in dev]
    scores = [float(row["score"]) / 4 for row in dev]
    measured = results(done)
    for name, value in model.evaluate(pairs, scores).items():
        assert measured[f"eval_{name}"] == pytest.approx(value, abs=1e-5)
    assert measured["eval_pearson"] > 0.5
    predicted = rows(done / "predictions.tsv")
    pairs = [(row["text_a"], row["text_b"]) for row in predicted]
    first, second = map(model.predict, map(list, zip(*pairs, strict=True)))
    cosines = np.sum(first * second, axis=1)
    lines = fine_tuning_runs.table(done / "test_results.tsv")
    for row, [line], cosine in zip(predicted, lines, cosines, strict=True):
        assert float(line) == pytest.approx(cosine, abs=1e-5)
        assert float(row["prediction"]) == pytest.approx(cosine, abs=1e-5)
    texts = [text for pair in pairs for text in pair]
    found = served.answer({"text": tf.constant(texts)})["vector"]
    np.testing.assert_allclose(found, model.predict(texts), atol=1e-5)


@pytest.mark.parametrize(
    "recorded", [{}, {"pooling": "max", "normalize": False}]
)
def test_defaults_are_those_of_a_text_embedder(
    run, exported, tmp_path, recorded
):
    start = fine_tuning_runs.write_release(tmp_path / "start", ("0", "1"))
    folder = tmp_path / "model"
    model = bert_tf.TextEmbedder.from_pretrained(start, **recorded)
    if recorded:
        model.save_pretrained(folder)
    else:
        model.model.save_pretrained(folder, tokenizer=model.tokenizer)
    given = {**WITHOUT_FILES, "pooling": None, "do_train": None}
    run(tmp_path / "out", **given, init_checkpoint=folder, do_export=True)
    texts = {"text": tf.constant(["good", "bad odd"])}
    vectors = exported.pop().answer(texts)["vector"]
    again = bert_tf.TextEmbedder.from_pretrained(folder)
    expected = again.predict(["good", "bad odd"])
    np.testing.assert_allclose(vectors, expected, atol=1e-5)
    lengths = np.linalg.norm(expected, axis=1)
    assert np.allclose(lengths, 1) == again.normalize


def test_pairs_without_scores(run, data_dir, tmp_path):
    run(tmp_path, do_eval=True, **UNSCORED)
    dev = rows(data_dir / "dev.tsv")
    model = bert_tf.TextEmbedder.from_pretrained(tmp_path / "release")
    others = {row["text_b"] for row in dev}
    ranks = []
    for row in dev:
        asked = row["text_a"]
        right = {x["text_b"] for x in dev if x["text_a"] == asked}
        texts = [asked, row["text_b"], *(others - right - {asked})]
        query, *vectors = model.predict(texts)
        cosines = np.array(vectors) @ query
        ranks.append(np.sum(cosines >= cosines[0]))
    found = results(tmp_path)
    assert found["eval_accuracy"] == pytest.approx(np.mean(np.equal(ranks, 1)))
    assert found["eval_mrr"] == pytest.approx(np.mean(1 / np.array(ranks)))


@pytest.mark.slow
def test_training_is_equal_with_any_devices(run, tmp_path, two_devices):
    changes = {"num_train_epochs": 1}
    run(tmp_path / "one", **changes)
    run(tmp_path / "two", **changes, **two_devices)
    run(tmp_path / "parts", **changes, gradient_accumulation_steps=2)
    expected = weights(tmp_path / "one" / "model.ckpt-3")
    for name in ("two", "parts"):
        found = weights(tmp_path / name / "model.ckpt-3")
        for key in [key for key in found if key.endswith("key/bias")]:
            found[key] = expected[key]
        assert_same(found, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"max_score": 2}, "train.tsv:3: the similarity must be from 0 to 2"),
        ({**UNSCORED, "gradient_accumulation_steps": 8}, "the 1 pair(s) that"),
        ({**UNSCORED, "text_b_column": "same"}, "No pair has a negative"),
        ({"task_name": "mrpc"}, "mrpc has no similarities. Pass one of sts-b"),
    ],
)
def test_invalid_flags_and_scores_are_errors(
    run, tmp_path, capsys, flags, message
):
    assert message in error_of(capsys, run, tmp_path / "out", **flags)
