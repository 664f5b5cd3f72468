"""The error for a missing package, with the command that installs it.

The command installs an extra from where the project was installed, since no
package index has it: `pip install '.[tensorflow]'` in a checkout.
"""

import contextlib
import importlib.metadata
import json
from collections.abc import Iterator

from bert_tf.errors import InputError

# Packages whose wheels require `tensorflow`, which must not be installed next
# to `tensorflow-tpu`.
_WITHOUT_DEPENDENCIES = {
    "tensorflow_serving": "tensorflow-serving-api",
    "tensorflow_text": "tensorflow-text",
}


class MissingPackageError(InputError):
    """A package that an extra of the project installs is missing."""


def missing(
    purpose: str, package: str, extra: str, advice: str = ""
) -> MissingPackageError:
    """Returns the error for a missing package.

    Args:
      purpose: What needs the package: a flag or a noun phrase.
      package: The name of the package or of its module.
      extra: The extra in pyproject.toml that installs it.
      advice: What else the user can do, which follows the command.
    """
    if url := _repository():
        return MissingPackageError(
            f"{purpose} needs the package {package}. Run: pip install "
            f"'bert_tf[{extra}] @ git+{url}'{advice}"
        )
    return MissingPackageError(
        f"{purpose} needs the package {package}. Run, in the checkout of "
        f"bert_tf: pip install '.[{extra}]'{advice}"
    )


def _repository() -> str:
    """Returns the git URL that bert_tf was installed from; "" if not by URL."""
    try:
        found = importlib.metadata.distribution("bert_tf")
    except importlib.metadata.PackageNotFoundError:
        return ""
    # pip writes this file, without passwords.
    origin = json.loads(found.read_text("direct_url.json") or "{}")
    is_git = origin.get("vcs_info", {}).get("vcs") == "git"
    return str(origin["url"]) if is_git else ""


@contextlib.contextmanager
def tensorflow_required(
    purpose: str = "This program", advice: str = ""
) -> Iterator[None]:
    """Converts a failed import of TensorFlow or its packages in the block.

    Args:
      purpose, advice: See `missing`.

    Raises:
      MissingPackageError: If TensorFlow, TensorFlow Text or the API of
        TensorFlow Serving is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        if module == "tensorflow":
            raise missing(purpose, module, "tensorflow", advice) from None
        if module not in _WITHOUT_DEPENDENCIES:
            raise
        raise _missing_companion(purpose, module) from None


def _missing_companion(purpose: str, module: str) -> MissingPackageError:
    """Returns the error for a package of the same release as TensorFlow."""
    import tensorflow as tf

    release = ".".join(tf.__version__.split(".")[:2])
    package = _WITHOUT_DEPENDENCIES[module]
    return MissingPackageError(
        f"{purpose} needs the package {package}. Run: pip install --no-deps "
        f"'{package}=={release}.*'"
    )
