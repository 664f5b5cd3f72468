"""Files of weights that are never opened: why, and what to do instead."""

import os
from collections.abc import Iterable

from bert_tf.errors import InputError

PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_TENSORFLOW = ".h5"
_FLAX = ".msgpack"

# The usual names first: beside them lie optimizers and settings.
_ORDER = ("pytorch_model", "tf_model", "flax_model", "")

# torch.load with weights_only reads tensors and runs nothing.
_FROM_PICKLE = (
    "import torch, safetensors.torch as s; w = torch.load('{source}', "
    "weights_only=True); s.save_file({{k: v.clone() for k, v in w.items()}}, "
    "'{target}', {{'format': 'pt'}})"
)
_FROM_OTHER = (
    "import transformers as t; c = t.AutoConfig.from_pretrained('{folder}'); "
    "getattr(t, c.architectures[0]).from_pretrained('{folder}', {which}=True)"
    ".save_pretrained('{folder}')"
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
    if path.endswith(PICKLES):
        reason = "a pickle, and to open one is to run what its author wrote"
        needs, command = "torch and safetensors", _FROM_PICKLE
    elif path.endswith(_TENSORFLOW):
        reason = "the format of transformers before 5 for TensorFlow"
        needs, command = "'transformers<5', torch and tf-keras", _FROM_OTHER
    else:
        reason = "the format of transformers before 5 for Flax"
        needs, command = "'transformers<5', torch and flax", _FROM_OTHER
    folder = os.path.dirname(path) or "."
    code = command.format(
        source=path,
        target=os.path.join(folder, "model.safetensors"),
        folder=folder,
        which="from_tf" if path.endswith(_TENSORFLOW) else "from_flax",
    )
    download = f"hf download {repository} --local-dir {folder} && "
    return InputError(
        f"expected model.safetensors in {repository or folder}. Received: "
        f"{os.path.basename(path)}, which is {reason}; to convert it, in an "
        f"environment with {needs}: {download if repository else ''}"
        f'python -c "{code}"'
    )


def _rank(name: str) -> tuple[int, str]:
    place = next(n for n, start in enumerate(_ORDER) if name.startswith(start))
    return place, name
