"""The files of an export: quiet, in few bytes, and reproducible."""

import logging
import pathlib

import absl.logging
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import fingerprint_pb2, meta_graph_pb2
from tensorflow.python.saved_model import fingerprinting_utils

from bert_tf.feature_tagger import BertFeatureTagger
from bert_tf.heads import BertClassifier, BertPretrainer, BertSpanLabeler
from bert_tf.serving import export
from bert_tf.serving.export import StoredWeights
from tests.serving.small_served import CONFIG, random_weights

# Loggers are silenced and restored.


@pytest.mark.parametrize("before", [logging.NOTSET, logging.INFO])
def test_loggers_are_silenced_and_restored(before):
    """One without a level, too: it takes that of the program's root."""
    talker, absl_logger = logging.getLogger("talker"), logging.getLogger("absl")
    verbosity, level = absl.logging.get_verbosity(), absl_logger.level
    talker.setLevel(before)
    absl_logger.setLevel(before)
    try:
        with export.at_least(absl.logging.ERROR, "talker"):
            assert absl.logging.get_verbosity() == absl.logging.ERROR
            for logger in (talker, absl_logger):
                assert not logger.isEnabledFor(logging.WARNING)
                assert logger.isEnabledFor(logging.ERROR)
        assert (talker.level, absl_logger.level) == (before, before)
        assert absl.logging.get_verbosity() == verbosity
    finally:
        absl_logger.setLevel(level)


# Weights are stored in the precision in which they are used.


IDS = np.array([[2, 7, 11, 3, 0], [2, 5, 3, 0, 0]], np.int32)
FEATURES = {"input_ids": IDS, "input_mask": (IDS > 0).astype(np.int32)}
MODELS = {
    "classifier": lambda **more: BertClassifier(CONFIG, 3, **more),
    "spans": lambda **more: BertSpanLabeler(CONFIG, **more),
    "pretrainer": lambda **more: BertPretrainer(CONFIG, **more),
    "lstms": lambda **more: BertFeatureTagger(
        CONFIG, 3, layers="sum_all", lstm_size=5, **more
    ),
}


@pytest.mark.parametrize(
    "kind",
    [
        "classifier",
        "spans",
        "pretrainer",
        pytest.param("lstms", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize(
    "policy",
    ["mixed_bfloat16", pytest.param("mixed_float16", marks=pytest.mark.slow)],
)
def test_outputs_are_equal_bit_for_bit(kind, policy):
    model = random_weights(MODELS[kind](dtype=policy))
    stored = StoredWeights(model)
    expected = model(FEATURES)
    for name, values in stored.used_by(model)(FEATURES).items():
        np.testing.assert_array_equal(values, expected[name])
    for name, variable in stored.by_name.items():
        is_wide = name.split("/")[-1] in ("gamma", "beta", "output_bias")
        dtype = "float32" if is_wide else policy.removeprefix("mixed_")
        assert variable.dtype == tf.as_dtype(dtype), name


def test_the_stored_weights_are_used():
    model = random_weights(BertClassifier(CONFIG, 3, dtype="mixed_bfloat16"))
    stored = StoredWeights(model)
    before = model(FEATURES)["logits"]
    stored.by_name["output_weights"].assign_add(
        tf.ones((3, CONFIG.hidden_size), tf.bfloat16)
    )
    np.testing.assert_array_equal(model(FEATURES)["logits"], before)
    after = stored.used_by(model)(FEATURES)["logits"]
    assert np.abs(after - before).max() > 0.1


@pytest.mark.parametrize("policy", ["float32", "bfloat16"])
def test_without_casts_the_variables_are_shared(policy):
    model = BertClassifier(CONFIG, 3, dtype=policy)
    model.build()
    own = [id(variable.value) for variable in model.weights]
    assert [id(v) for v in StoredWeights(model).by_name.values()] == own


# Equal models give equal files.


class Counter(tf.Module):
    """Counts in a loop, inside a branch, to a number from a table."""

    def __init__(self, folder, words):
        super().__init__()
        path = pathlib.Path(folder, "words.txt")
        path.write_text("\n".join(words), "utf-8")
        initializer = tf.lookup.TextFileInitializer(
            str(path),
            *(tf.string, tf.lookup.TextFileIndex.WHOLE_LINE),
            *(tf.int64, tf.lookup.TextFileIndex.LINE_NUMBER),
        )
        self.table = tf.lookup.StaticHashTable(initializer, -1)
        self.step = tf.Variable(2.0)

    @tf.function(input_signature=[tf.TensorSpec([], tf.string)])
    def count(self, word):
        number, total = self.table.lookup(word), tf.constant(0.0)
        if number > 0:
            while number > 0:
                total += self.step
                number -= 1
        return {"total": total}


@pytest.fixture
def save(tmp_path_factory):
    def save(words=("a", "b", "c")):
        folder = tmp_path_factory.mktemp("saved")
        module = Counter(tmp_path_factory.mktemp("words"), words)
        tf.saved_model.save(module, str(folder), {"count": module.count})
        export.make_reproducible(str(folder))
        return folder

    return save


def contents(folder):
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in folder.rglob("*")
        if file.is_file()
    }


def test_equal_modules_give_equal_files(save):
    first = contents(save())
    assert contents(save()) == first
    assert {"saved_model.pb", "fingerprint.pb"} < first.keys()


def test_outputs_are_unchanged(save):
    """Two in one process, whose tables differ."""
    models = [
        tf.saved_model.load(str(save(words)))
        for words in (("a", "b", "c"), ("c", "a", "b"))
    ]
    answers = [
        [
            model.signatures["count"](word=tf.constant(word))["total"].numpy()
            for word in ("a", "b", "c", "d")
        ]
        for model in models
    ]
    assert answers == [[0.0, 2.0, 4.0, 0.0], [2.0, 4.0, 0.0, 0.0]]


def test_tables_with_other_words_have_other_names(save):
    words = [save(words) / "saved_model.pb" for words in (("a", "b"), ("c",))]
    names = [
        {part[:16] for part in path.read_bytes().split(b"hash_table_")[1:]}
        for path in words
    ]
    assert [len(found) for found in names] == [1, 1]
    assert names[0] != names[1]


def test_the_fingerprint_matches_the_files(save):
    folder = str(save())
    written = fingerprint_of(folder)
    fingerprinting_utils.write_fingerprint(folder)
    computed = fingerprint_of(folder)
    assert written.uuid != computed.uuid
    written.uuid = computed.uuid
    assert written == computed
    assert written.saved_model_checksum != (
        fingerprint_of(save(("x", "y"))).saved_model_checksum
    )


def fingerprint_of(folder):
    content = pathlib.Path(folder, "fingerprint.pb").read_bytes()
    return fingerprint_pb2.FingerprintDef.FromString(content)


def test_two_functions_exchange_their_names():
    """A new name may be the old one of a function that comes later."""
    meta_graph = meta_graph_pb2.MetaGraphDef()
    objects = meta_graph.object_graph_def
    for number in (0, 1):
        function = meta_graph.graph_def.library.function.add()
        function.signature.name = f"f_{number}"
        function.node_def.add(name=f"was_{number}")
        objects.concrete_functions[f"f_{number}"].bound_inputs.append(number)
    for number in (1, 0):
        node = meta_graph.graph_def.node.add()
        node.attr["f"].func.name = f"f_{number}"
        saved = objects.nodes.add().function
        saved.concrete_functions.append(f"f_{number}")
    export._rename_functions(meta_graph)
    found = [
        (function.signature.name, function.node_def[0].name)
        for function in meta_graph.graph_def.library.function
    ]
    assert found == [("f_0", "was_1"), ("f_1", "was_0")]
    bound = {
        name: list(function.bound_inputs)
        for name, function in objects.concrete_functions.items()
    }
    assert bound == {"f_0": [1], "f_1": [0]}
    assert [list(n.function.concrete_functions) for n in objects.nodes] == [
        ["f_0"],
        ["f_1"],
    ]
