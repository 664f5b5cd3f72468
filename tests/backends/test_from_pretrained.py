"""`from_pretrained` and `save_pretrained` of models, tokenizers and configs."""

import importlib.util
import re

import keras
import numpy as np
import pytest

import bert_tf
from bert_tf.checkpoints import huggingface
from bert_tf.checkpoints.huggingface_names import HEADS
from bert_tf.checkpoints.pretrained import open_pretrained
from bert_tf.modeling.variables import checkpoint_variables
from tests.backends import small_bert
from tests.backends.small_bert import numbers
from tests.checkpoints.small_models import (
    CONFIG,
    NUM_LABELS,
    VOCAB,
    pretrained,
    refused,
)

CLASSES = {
    "encoder": bert_tf.BertModel,
    "pretraining": bert_tf.BertPretrainer,
    "masked_lm": bert_tf.BertPretrainer,
    "classifier": bert_tf.BertClassifier,
    "choice": bert_tf.BertMultipleChoice,
    "token": bert_tf.BertTokenClassifier,
    "span": bert_tf.BertSpanLabeler,
}
# Weights that some heads do not use.
UNUSED = "bert/pooler/|cls/seq_relationship/"
HAS_TENSORFLOW = importlib.util.find_spec("tensorflow") is not None


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Hugging Face folders of one model for each head."""
    root = tmp_path_factory.mktemp("models")
    for head in CLASSES:
        (root / head).mkdir()
        huggingface.write(str(root / head), pretrained(head))
    return root


def assert_filled(model, head):
    """Compares weights with the checkpoint's; returns names of others."""
    expected = dict(pretrained(head).weights)
    if "pooler" not in HEADS[head].parts:
        # Hugging Face's files leave it out.
        expected = {n: x for n, x in expected.items() if "pooler" not in n}
    variables = small_bert.arrays(model)
    for name in expected.keys() & variables.keys():
        np.testing.assert_array_equal(variables[name], expected[name], name)
    return variables.keys() - expected.keys()


@pytest.mark.parametrize("head", CLASSES)
@pytest.mark.parametrize(
    "format", ["huggingface", *(["tf1"] if HAS_TENSORFLOW else [])]
)
def test_loaded_saved_and_loaded(folders, tmp_path, head, format):
    first = CLASSES[head].from_pretrained(folders / head)
    first.save_pretrained(tmp_path / "saved", format)
    again = CLASSES[head].from_pretrained(tmp_path / "saved")
    for model in (first, again):
        random = assert_filled(model, head)
        assert all(re.match(UNUSED, name) for name in random)
        assert not random or head in ("masked_lm", "token", "span")
        assert model.config == CONFIG
        assert model.checkpoint.vocab == VOCAB
        assert model.checkpoint.do_lower_case is True
        assert model.checkpoint.labels == pretrained(head).labels
        if head in ("classifier", "token"):
            assert model.num_labels == NUM_LABELS[head]
            assert model.labels == pretrained(head).labels
    card = (tmp_path / "saved" / "README.md").read_text()
    assert f"bert_tf.{CLASSES[head].__name__}.from_pretrained" in card
    # transformers cannot load a TF1 checkpoint.
    assert ("transformers" in card) == (format == "huggingface")


def test_a_new_head_on_an_encoder(folders):
    names = ["no", "maybe", "yes"]
    model = bert_tf.BertClassifier.from_pretrained(
        folders / "pretraining", labels=names, dtype="mixed_bfloat16"
    )
    assert model.labels == tuple(names)
    assert model.dtype_policy.name == "mixed_bfloat16"
    assert assert_filled(model, "pretraining") == {
        "output_weights",
        "output_bias",
    }
    with refused("no head of this kind. Pass labels"):
        bert_tf.BertClassifier.from_pretrained(folders / "pretraining")
    with refused("no head of this kind. Pass labels"):
        bert_tf.BertClassifier.from_pretrained(folders / "token")


def test_a_multiple_choice_model_does_not_use_a_classifier(tmp_path):
    """Even if the shapes are the same."""
    classifier = bert_tf.BertClassifier(CONFIG, num_labels=1)
    classifier.save_pretrained(tmp_path)
    model = bert_tf.BertMultipleChoice.from_pretrained(tmp_path)
    ours, theirs = map(small_bert.arrays, (model, classifier))
    name = "output_weights"
    assert np.abs(ours[name] - theirs[name]).max() > 1e-3
    name = "bert/pooler/dense/kernel"
    np.testing.assert_array_equal(ours[name], theirs[name])


def test_a_subclass_gets_the_head_of_the_checkpoint(folders, tmp_path):
    class MyClassifier(bert_tf.BertClassifier):
        pass

    model = MyClassifier.from_pretrained(folders / "classifier")
    assert not assert_filled(model, "classifier")
    model.save_pretrained(tmp_path / "saved")
    again = bert_tf.BertClassifier.from_pretrained(tmp_path / "saved")
    assert not assert_filled(again, "classifier")
    with refused("no head of this kind"):
        MyClassifier.from_pretrained(folders / "token")


def test_an_encoder_of_a_model_without_pooler(folders):
    model = bert_tf.BertModel.from_pretrained(folders / "span")
    assert "pooled_output" not in model({"input_ids": np.ones([1, 3], int)})


def test_labels_decide_whether_the_head_is_kept(folders):
    theirs = pretrained("classifier").labels

    def load(**options):
        return bert_tf.BertClassifier.from_pretrained(
            folders / "classifier", **options
        )

    assert not assert_filled(load(labels=theirs), "classifier")
    backwards = load(labels=theirs[::-1])
    assert backwards.labels == theirs[::-1]
    inputs = {"input_ids": np.array([[2, 5, 3]])}
    np.testing.assert_allclose(
        numbers(backwards(inputs)["logits"])[:, ::-1],
        numbers(load()(inputs)["logits"]),
        rtol=1e-5,
    )
    others = load(labels=[f"other {n}" for n in range(5)])
    trained = pretrained("classifier").weights["output_weights"]
    assert np.abs(numbers(others.output_weights) - trained).max() > 0.1
    assert load(num_labels=2).labels is None


def test_invalid_options(folders):
    for options, message in (
        ({"labels": ["a", "b"], "num_labels": 3}, "must be 2, the number of"),
        ({"labels": ["a", "a"]}, "labels must be different"),
        ({"labels": "ab"}, "labels must be a list of non-empty names"),
        ({"labls": ["a", "b"]}, "no option 'labls'. Did you mean 'labels'"),
    ):
        with refused(message):
            bert_tf.BertClassifier.from_pretrained(
                folders / "classifier", **options
            )
    with refused("BertSpanLabeler has no labels"):
        bert_tf.BertSpanLabeler.from_pretrained(folders / "span", labels=["a"])


@pytest.mark.parametrize(
    ("theirs", "ours", "options", "written"),
    [
        ("masked_lm", "pretraining", {}, "masked_lm"),
        ("span", "pretraining", {}, "encoder"),
        ("span", "encoder", {"add_pooling_layer": True}, "encoder"),
        ("encoder", "classifier", {"labels": ["x", "y"]}, "encoder"),
    ],
)
def test_random_parts_are_not_saved(
    folders, tmp_path, caplog, theirs, ours, options, written
):
    """They are random for the next program, too, until they are trained."""
    load = CLASSES[ours].from_pretrained
    model = load(folders / theirs, **options)
    names, _ = model.random_variables
    caplog.clear()
    model.save_pretrained(tmp_path / "untrained")
    assert "is random, since the checkpoint lacks it" in caplog.text
    assert open_pretrained(tmp_path / "untrained").head == written
    model.save(tmp_path / "untrained.keras")
    for name in ("untrained", "untrained.keras"):
        again = load(tmp_path / name, **options)
        assert again.random_variables[0] == names
        assert_filled(again, theirs)
    variable = checkpoint_variables(model)[names[-1]]
    variable.assign(np.ones(variable.shape))
    model.save_pretrained(tmp_path / "trained")
    again = load(tmp_path / "trained", **options)
    unused = (again.random_variables or ((),))[0]
    assert all(re.match(UNUSED, name) for name in unused)


def test_a_model_from_scratch_is_saved_with_a_tokenizer(tmp_path):
    model = bert_tf.BertClassifier(CONFIG, num_labels=2)
    tokenizer = bert_tf.FullTokenizer(list(VOCAB), do_lower_case=False)
    folder = tmp_path / "saved"
    model.save_pretrained(folder, tokenizer=tokenizer, labels=["bad", "good"])
    again = bert_tf.BertClassifier.from_pretrained(folder)
    assert again.labels == ("bad", "good")
    found = bert_tf.FullTokenizer.from_pretrained(folder)
    assert found.vocabulary == VOCAB
    assert found.do_lower_case is False
    assert bert_tf.load_config(folder) == CONFIG


def test_impossible_saves_write_nothing(tmp_path):
    model = bert_tf.BertModel(CONFIG)
    with refused("format must be 'huggingface' or 'tf1'; got 'h5'"):
        model.save_pretrained(tmp_path / "saved", "h5")
    own = type("Own", (bert_tf.BertModel,), {"head_name": None})(CONFIG)
    with refused("no counterpart in other libraries"):
        own.save_pretrained(tmp_path / "saved")
    with refused("output_bias has 2 elements.* needs 3"):
        bert_tf.BertClassifier(CONFIG, 2).save_pretrained(
            tmp_path / "saved", labels=["a", "b", "c"]
        )
    assert not [*tmp_path.iterdir()]
    model.save_pretrained(tmp_path)
    with refused(r"no vocab\.txt beside the checkpoint"):
        bert_tf.FullTokenizer.from_pretrained(tmp_path)
    with refused("expected a new or empty directory"):
        model.save_pretrained(tmp_path)


@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="strings need TensorFlow"
)
def test_a_graph_tokenizer(folders):
    tokenizer = bert_tf.BertTokenizer.from_pretrained(
        folders / "encoder", max_seq_length=5
    )
    assert tokenizer.vocabulary == VOCAB
    assert tokenizer.do_lower_case is True
    assert tokenizer(["A b"])["input_ids"].numpy().tolist() == [[2, 5, 6, 3, 0]]
