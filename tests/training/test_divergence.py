"""NaN is found where it first was."""

import numpy as np
import pytest

from bert_tf.errors import InputError
from bert_tf.training.hooks import (
    NonFiniteError,
    require_finite_steps,
    require_finite_tensors,
)


def records(loss, gradient_norm):
    return {
        "loss": np.array(loss, "float32"),
        "gradient_norm": np.array(gradient_norm, "float32"),
    }


def test_finite_numbers_pass():
    require_finite_steps(5, records([1e38, 0.0, -1.0], [1.0, 0.0, 1e38]))
    require_finite_tensors(5, {"kernel": np.ones(3), "step": np.int64(7)})


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", ["loss", "gradient_norm"])
def test_the_first_step_that_is_no_number_is_named(bad, where):
    values = {"loss": [1.0] * 4, "gradient_norm": [1.0] * 4}
    values[where][2:] = [bad, bad]
    with pytest.raises(
        NonFiniteError, match=r"^step 19: .*--learning_rate"
    ) as e:
        require_finite_steps(20, records(**values))
    # Pre-training and fine-tuning have different flags for the warm-up.
    assert "warmup_" not in str(e.value)
    assert issubclass(NonFiniteError, InputError)


def test_the_tensor_that_is_no_number_is_named():
    tensors = {"a": np.zeros(3), "b": np.array([0.0, np.inf])}
    with pytest.raises(NonFiniteError, match=r"^step 3: b is not finite"):
        require_finite_tensors(3, tensors)
