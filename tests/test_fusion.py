"""Passes are fused where the step says so, and where it is worth it."""

import threading

import pytest
import tensorflow as tf

from bert_tf import fused_passes, fusion
from bert_tf.fusion import Compiled, compiling


def large():
    return tf.zeros([fusion.LEAST_SIZE // 256, 256])


def test_only_inside():
    assert fusion.passes_for(large()) is None
    with compiling(Compiled.PASSES):
        assert fusion.passes_for(large()) is fused_passes
        with compiling(Compiled.EVERYTHING):
            assert fusion.passes_for(large()) is None
            assert fusion.is_all_compiled()
        assert fusion.passes_for(large()) is fused_passes
        assert not fusion.is_all_compiled()
    assert fusion.passes_for(large()) is None
    assert not fusion.is_all_compiled()


def test_an_error_leaves_it_off():
    with pytest.raises(KeyError), compiling(Compiled.PASSES):
        raise KeyError
    assert fusion.passes_for(large()) is None


def test_other_threads_are_not_inside():
    found = []
    with compiling(Compiled.PASSES):
        thread = threading.Thread(
            target=lambda: found.append(fusion.passes_for(large()))
        )
        thread.start()
        thread.join()
    assert found == [None]


def test_few_numbers_are_not_worth_it():
    with compiling(Compiled.PASSES):
        assert fusion.passes_for(large()[1:]) is None


def test_double_precision_stays_double():
    with compiling(Compiled.PASSES):
        assert fusion.passes_for(tf.cast(large(), "bfloat16"))
        assert fusion.passes_for(tf.cast(large(), "float64")) is None


def test_shapes_that_change_are_not_compiled_each():
    found = []

    @tf.function(input_signature=[tf.TensorSpec([None, 256])])
    def look(x):
        with compiling(Compiled.PASSES):
            found.append(fusion.passes_for(x))
        return x

    look(large())
    assert found == [None]
