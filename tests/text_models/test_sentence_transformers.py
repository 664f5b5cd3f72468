"""Vectors and files are the same as in sentence-transformers."""

import functools
import json

import numpy as np
import pytest

import bert_tf
from bert_tf.checkpoints.pretrained import open_pretrained
from tests.checkpoints.small_models import (
    VOCAB,
    refused,
    write_folder,
    write_json,
)
from tests.parity import test_minilm

pytestmark = pytest.mark.usefixtures("eagerly")
TEXTS = ["a b c", "d", "", "e f g h i j k l m n"]
# The names of classes in version 2 and in version 6.
KINDS = (
    "sentence_transformers.models.{}",
    "sentence_transformers.sentence_transformer.modules.some.{}",
)


# tests/parity/test_minilm.py has the encoder.
@pytest.mark.slow
def test_vectors_of_minilm(golden):
    arrays = np.load(golden / "sentence_vectors.npz")
    model = bert_tf.TextEmbedder.from_pretrained(test_minilm.folder())
    vectors = model.predict(arrays["texts"].tolist())
    np.testing.assert_allclose(
        vectors[:, ::16], arrays["vectors"], rtol=0, atol=1e-5
    )


@pytest.fixture
def folder(tmp_path):
    """Returns a function that writes a folder of sentence-transformers."""

    def write(pooling, *modules, kind=KINDS[0], transformer=(), settings=()):
        folder = tmp_path / "model"
        write_folder(folder, head="encoder")
        (folder / "vocab.txt").write_text("\n".join(VOCAB))
        for name in ("Transformer", "Pooling", *modules):
            (folder / f"1_{name}").mkdir()
        write_json(folder / "1_Pooling", "config.json", pooling)
        write_json(folder, "sentence_bert_config.json", dict(transformer))
        write_json(folder, "config_sentence_transformers.json", dict(settings))
        paths = {"Transformer": "", "Pooling": "1_Pooling"}
        entries = [
            {"type": kind.format(name), "path": paths.get(name, f"1_{name}")}
            for name in ("Transformer", "Pooling", *modules)
        ]
        write_json(folder, "modules.json", entries)
        return folder

    return write


def options(found):
    return found.pooling, found.normalize, found.max_seq_length


def test_options_of_old_and_new_files(folder):
    old = {"pooling_mode_cls_token": False, "pooling_mode_max_tokens": True}
    made = folder(old, transformer={"max_seq_length": 11})
    assert options(open_pretrained(made)) == ("max", False, 11)
    # The model has 19 positions.
    write_json(made, "sentence_bert_config.json", {"max_seq_length": 400})
    assert open_pretrained(made).max_seq_length == 19


def test_options_of_version_6(folder):
    made = folder({"pooling_mode": "cls"}, "Normalize", kind=KINDS[1])
    write_json(made, "tokenizer_config.json", {"model_max_length": 7})
    load = bert_tf.TextEmbedder.from_pretrained
    assert options(load(made)) == ("cls", True, 7)
    given = {"pooling": "max", "normalize": False, "max_seq_length": 13}
    assert options(load(made, **given)) == ("max", False, 13)


def test_lower_casing_before_a_cased_tokenizer(folder):
    made = folder({}, transformer={"do_lower_case": True})
    write_json(made, "tokenizer_config.json", {"do_lower_case": False})
    found = open_pretrained(made)
    assert (found.do_lower_case, found.strip_accents) == (True, False)


@pytest.mark.parametrize(
    ("pooling", "settings", "message"),
    [
        ({"pooling_mode": ["cls", "max"]}, {}, "Pooling with cls and max"),
        (
            {"pooling_mode": "mean", "include_prompt": False},
            {"prompts": {"query": "a "}},
            "Pooling without the prompt",
        ),
    ],
)
def test_poolings_that_are_not_supported(folder, pooling, settings, message):
    made = folder(pooling, settings=settings)
    with refused(rf"cannot compute {message}\. BertModel"):
        bert_tf.TextEmbedder.from_pretrained(made)
    bert_tf.BertModel.from_pretrained(made)


# The modules of a model, and their paths.
ROOT, POOLING = ("Transformer", ""), ("Pooling", "1_Pooling")
NORMALIZE, DENSE = ("Normalize", "2_Normalize"), ("Dense", "3_Dense")


@pytest.mark.parametrize(
    ("modules", "message"),
    [
        ([], "no modules"),
        ([POOLING], "Pooling"),
        ([ROOT, ROOT, POOLING], "Transformer, Transformer and Pooling"),
        ([ROOT, ("Pooling", ".")], r"Transformer and Pooling in '\.'"),
        ([("Transformer", "0"), POOLING], "Transformer in '0' and Pooling"),
        ([ROOT, NORMALIZE, POOLING], "Transformer, Normalize and Pooling"),
        ([ROOT, POOLING, DENSE], "Transformer, Pooling and Dense"),
    ],
)
def test_modules_that_are_not_supported(folder, modules, message):
    made = folder({"pooling_mode": "max"}, "Normalize", "Dense")
    entries = [
        {"type": KINDS[0].format(kind), "path": path} for kind, path in modules
    ]
    write_json(made, "modules.json", entries)
    with refused(rf"cannot compute modules\.json with {message}\. BertModel"):
        bert_tf.TextEmbedder.from_pretrained(made)
    bert_tf.BertModel.from_pretrained(made)


def test_invalid_modules(folder):
    made = folder({})
    (made / "modules.json").write_text("[{}]")
    with refused("modules.json: expected a list of modules with 'type'"):
        open_pretrained(made)


def test_prompts(folder):
    prompts = {"query": "b c ", "document": ""}
    settings = {"prompts": prompts, "default_prompt_name": "query"}
    made = folder({"pooling_mode": "mean"}, settings=settings)
    model = bert_tf.TextEmbedder.from_pretrained(made)
    vectors = model.predict(TEXTS)
    texts = [f"b c {text}" for text in TEXTS]
    plain = functools.partial(model.predict, prompt_name="document")
    np.testing.assert_array_equal(vectors, plain(texts))
    assert np.abs(vectors - plain(TEXTS)).max(axis=1).all()
    for name in ("title", ["query"]):
        with refused("The name of a prompt must be 'query' or 'document'"):
            model.predict(TEXTS, prompt_name=name)


def test_prompts_are_texts_by_name(folder):
    made = folder({})
    for prompts in ({"q": 5}, {5: "q"}, "query", 0):
        with refused("prompts must be a dict from names to texts; got"):
            bert_tf.TextEmbedder.from_pretrained(made, prompts=prompts)


@pytest.mark.parametrize("format", ["huggingface", "tf1"])
@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_saved_and_loaded(folder, tmp_path, pooling, format):
    if format == "tf1":
        pytest.importorskip("tensorflow")
    made = folder({"pooling_mode": "max"})
    model = bert_tf.TextEmbedder.from_pretrained(
        made,
        pooling=pooling,
        normalize=pooling == "mean",
        max_seq_length=9,
        prompts={"query": "a "},
        default_prompt_name="query",
    )
    model.save_pretrained(tmp_path / "saved", format=format)
    again = bert_tf.TextEmbedder.from_pretrained(tmp_path / "saved")
    same = ("pooling", "normalize", "max_seq_length", "default_prompt_name")
    for name in (*same, "prompts"):
        assert getattr(again, name) == getattr(model, name)
    np.testing.assert_allclose(
        again.predict(TEXTS), model.predict(TEXTS), atol=1e-6
    )
    if format == "huggingface":
        modules = json.loads((tmp_path / "saved/modules.json").read_text())
        kinds = ["Transformer", "Pooling", "Normalize"][: len(modules)]
        theirs = [KINDS[0].format(kind) for kind in kinds]
        assert [module["type"] for module in modules] == theirs
        card = (tmp_path / "saved/README.md").read_text()
        assert "library_name: sentence-transformers" in card


def test_loaded_by_sentence_transformers(folder, tmp_path):
    theirs = pytest.importorskip("sentence_transformers")
    model = bert_tf.TextEmbedder.from_pretrained(
        folder({}), pooling="max", normalize=True, max_seq_length=9
    )
    model.save_pretrained(tmp_path / "saved")
    loaded = theirs.SentenceTransformer(str(tmp_path / "saved"), device="cpu")
    np.testing.assert_allclose(
        loaded.encode(TEXTS), model.predict(TEXTS), atol=1e-5
    )
