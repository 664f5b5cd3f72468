"""SavedModels of equal models are equal, byte for byte."""

import pathlib

import pytest
import tensorflow as tf
from tensorflow.core.protobuf import fingerprint_pb2, meta_graph_pb2
from tensorflow.python.saved_model import fingerprinting_utils

from bert_tf.serving import export


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


def test_equal_models_are_equal_files(save):
    first = contents(save())
    assert contents(save()) == first
    assert {"saved_model.pb", "fingerprint.pb"} < first.keys()


def test_models_compute_what_they_did(save):
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


def test_tables_of_other_words_have_other_names(save):
    words = [save(words) / "saved_model.pb" for words in (("a", "b"), ("c",))]
    names = [
        {part[:16] for part in path.read_bytes().split(b"hash_table_")[1:]}
        for path in words
    ]
    assert [len(found) for found in names] == [1, 1]
    assert names[0] != names[1]


def test_the_fingerprint_is_of_the_rewritten_files(save):
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


def test_names_that_are_exchanged():
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
