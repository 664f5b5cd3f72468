"""Training that has run into NaN or infinity: found, and told in one line."""

from collections.abc import Mapping

import numpy as np

from bert_tf.errors import InputError


class NonFiniteError(InputError):
    """The loss, a gradient or a weight is NaN or infinite."""


def require_finite_steps(step: int, records: Mapping[str, np.ndarray]) -> None:
    """Looks at the last steps of a run.

    Args:
      step: How many are done by now.
      records: `loss` and `gradient_norm` of each of the last n, floats [n].

    Raises:
      NonFiniteError: One is not a number; the first such step is named.
    """
    bad = ~np.isfinite(records["loss"] + records["gradient_norm"])
    if bad.any():
        index = int(bad.argmax())
        raise NonFiniteError(
            f"step {step - len(bad) + index + 1}: loss "
            f"{records['loss'][index]}, gradient norm "
            f"{records['gradient_norm'][index]}; no checkpoint has seen "
            "it. Lower --learning_rate, or use more warm-up steps"
        )


def require_finite_tensors(
    step: int, tensors: Mapping[str, np.ndarray]
) -> None:
    """Looks at what is to be saved at `step`, by name.

    Raises:
      NonFiniteError: A tensor holds what is no number.
    """
    for name, values in tensors.items():
        if not np.isfinite(values).all():
            raise NonFiniteError(
                f"step {step}: {name} is not finite and not saved; "
                "lower --learning_rate"
            )
