"""Passes are fused where the step says so, and where it is worth it."""

import threading

import pytest
import tensorflow as tf

from bert_tf import fused_passes, fusion


def large():
    return tf.zeros([fusion.LEAST_SIZE // 256, 256])


def test_only_inside():
    assert fusion.passes_for(large()) is None
    with fusion.fused_passes():
        assert fusion.passes_for(large()) is fused_passes
        with fusion.fused_passes(on=False):
            assert fusion.passes_for(large()) is None
        assert fusion.passes_for(large()) is fused_passes
    assert fusion.passes_for(large()) is None


def test_an_error_leaves_it_off():
    with pytest.raises(KeyError), fusion.fused_passes():
        raise KeyError
    assert fusion.passes_for(large()) is None


def test_other_threads_are_not_inside():
    found = []
    with fusion.fused_passes():
        thread = threading.Thread(
            target=lambda: found.append(fusion.passes_for(large()))
        )
        thread.start()
        thread.join()
    assert found == [None]


def test_few_numbers_are_not_worth_it():
    with fusion.fused_passes():
        assert fusion.passes_for(large()[1:]) is None


def test_shapes_that_change_are_not_compiled_each():
    found = []

    @tf.function(input_signature=[tf.TensorSpec([None, 256])])
    def look(x):
        with fusion.fused_passes():
            found.append(fusion.passes_for(x))
        return x

    look(large())
    assert found == [None]
