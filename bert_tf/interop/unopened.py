"""Files of weights that are never opened: why, and what to do instead."""

import os
import shlex
from collections.abc import Iterable

from bert_tf import files
from bert_tf.errors import InputError

PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
# How a pickle begins, and the archive that torch.save puts one in.
_BEGINNINGS = (b"\x80", b"PK")
_TENSORFLOW = ".h5"
_FLAX = ".msgpack"

# The usual names first: beside them lie optimizers and settings.
_ORDER = ("pytorch_model", "tf_model", "flax_model", "")

# Paths are arguments: in the code, a path could end its string and run.
# torch.load with weights_only reads tensors and runs nothing.
_FROM_PICKLE = (
    "import sys, torch, safetensors.torch as s; w = torch.load(sys.argv[1], "
    "weights_only=True); s.save_file({k: v.clone() for k, v in w.items()}, "
    "sys.argv[2], {'format': 'pt'})"
)
_FROM_OTHER = (
    "import sys, transformers as t; f = sys.argv[1]; "
    "c = t.AutoConfig.from_pretrained(f); getattr(t, c.architectures[0])"
    ".from_pretrained(f, %s=True).save_pretrained(f)"
)


def find(names: Iterable[str]) -> str | None:
    """The file of weights among `names` that is none we open, if any is."""
    known = (*PICKLES, _TENSORFLOW, _FLAX)
    found = [name for name in names if name.endswith(known)]
    return min(found, key=_rank, default=None)


def refusal(path: str, repository: str | None = None) -> InputError:
    """What to raise for a file that `find` found: the reason and the remedy.

    Args:
      path: The file, or where it will be once it is downloaded.
      repository: Where it is to be downloaded from, of the Hub.
    """
    if _is_something_else(path):
        return _unknown(path)
    folder = os.path.dirname(path) or "."
    arguments = [folder]
    if path.endswith(PICKLES):
        reason = "a pickle, and to open one is to run what its author wrote"
        needs, code = "torch and safetensors", _FROM_PICKLE
        arguments = [path, os.path.join(folder, "model.safetensors")]
    elif path.endswith(_TENSORFLOW):
        reason = "the format of transformers before 5 for TensorFlow"
        needs = "'transformers<5', torch and tf-keras"
        code = _FROM_OTHER % "from_tf"
    else:
        reason = "the format of transformers before 5 for Flax"
        needs = "'transformers<5', torch and flax"
        code = _FROM_OTHER % "from_flax"
    command = f'python -c "{code}" {shlex.join(arguments)}'
    if repository:
        download = ["hf", "download", repository, "--local-dir", folder]
        command = f"{shlex.join(download)} && {command}"
    return InputError(
        f"expected model.safetensors in {repository or folder}. Received: "
        f"{os.path.basename(path)}, which is {reason}; to convert it, in an "
        f"environment with {needs}: {command}"
    )


def _is_something_else(path: str) -> bool:
    """True for a file that is not what its name promises."""
    if path.endswith(PICKLES):
        return files.exists(path) and not _begins_as_pickle(path)
    is_keras = path.endswith(_TENSORFLOW)
    return is_keras and not os.path.basename(path).startswith("tf_model")


def _begins_as_pickle(path: str) -> bool:
    if files.is_directory(path):
        return False
    with files.open_read(path) as file:
        return file.read(2).startswith(_BEGINNINGS)


def _unknown(path: str) -> InputError:
    """What to raise for a file of a format that only its maker knows."""
    if path.endswith(_TENSORFLOW):
        reason, remedy = (
            "an HDF5 file, which may be anybody's",
            "load it with the program that made it, and save a .keras file or "
            "safetensors",
        )
    else:
        reason, remedy = (
            "neither that nor what torch.save writes",
            "a TF1 checkpoint is PREFIX.index with PREFIX.data-*; one of the "
            "older form, in one file, is to be saved again by a tf.train.Saver",
        )
    return InputError(
        f"expected model.safetensors or a TF1 checkpoint. Received: {path}, "
        f"which is {reason}; {remedy}"
    )


def _rank(name: str) -> tuple[int, str]:
    place = next(n for n, start in enumerate(_ORDER) if name.startswith(start))
    return place, name
