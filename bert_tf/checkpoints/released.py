"""Google's published models by name, such as `uncased_L-12_H-768_A-12`.

The first use of a name downloads the model's zip and extracts the files that a
model needs. Later uses read them from the cache, without a network:

    2018_10_18/uncased_L-12_H-768_A-12/          bert_config.json, vocab.txt ...

Environment variables:

    BERT_TF_CACHE       the cache; by default bert_tf in XDG_CACHE_HOME or in
                        ~/.cache
    BERT_TF_MODELS_URL  a mirror of https://storage.googleapis.com/bert_models
"""

import contextlib
import os
import posixpath
import shutil
import sys
import zipfile

from bert_tf.base import files
from bert_tf.checkpoints.released_models import FILES, MODELS, known_checksums
from bert_tf.errors import InputError, reason, wrong_value

CACHE = "BERT_TF_CACHE"
MODELS_URL = "BERT_TF_MODELS_URL"
GOOGLE = "https://storage.googleapis.com/bert_models"


def download(name: str) -> str:
    """Downloads a model, unless the cache has it.

    The folder of a model appears when it is complete. If several processes
    download the same model, the first to finish provides it.

    Args:
      name: A key of `MODELS`: `NAME` or `DATE/NAME`.

    Returns:
      The folder in the cache.

    Raises:
      InputError: If the download fails or does not contain the expected files,
        or the cache cannot be written.
    """
    model = MODELS[name]
    folder = os.path.join(_cache(), model)
    if os.path.isdir(folder):
        return folder
    url = f"{(os.environ.get(MODELS_URL) or GOOGLE).rstrip('/')}/{model}.zip"
    try:
        with files.atomic_directory(folder) as unfinished:
            _extract(url, unfinished)
            _compare_checksums(unfinished, model)
    except Exception as error:  # `get_file` raises no particular class.
        if os.path.isdir(folder):
            return folder  # Another process was faster.
        raise InputError(
            f"Cannot get {name} from {url}: {reason(error).rstrip('.')}. Set "
            f"{MODELS_URL} to a mirror or {CACHE} to a writable folder with "
            "enough space, or pass the path of a local model."
        ) from error
    return folder


def _cache() -> str:
    folder = os.environ.get(CACHE)
    if not folder:
        home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        folder = os.path.join(home, "bert_tf")
    if files.is_remote(folder):
        raise wrong_value(CACHE, "a local folder", folder)
    return os.path.abspath(os.path.expanduser(folder))


def _extract(url: str, folder: str) -> None:
    """Downloads a zip, and writes the files that a model needs to a folder.

    They are at the top of the zip, as in the zips of 2020, or in one folder.
    Names in a zip are only compared, never used as paths.
    """
    import keras

    # The standard output may be a file of answers.
    with contextlib.redirect_stdout(sys.stderr):
        path = keras.utils.get_file("model.zip", url, cache_dir=folder)
    with zipfile.ZipFile(path) as zipped:
        members = {
            posixpath.basename(member): member for member in zipped.namelist()
        }
        for name in FILES:
            if name not in members:
                raise InputError(f"the zip has no {name}")
            with (
                zipped.open(members[name]) as content,
                open(os.path.join(folder, name), "wb") as target,
            ):
                shutil.copyfileobj(content, target)
    shutil.rmtree(os.path.dirname(path))


def _compare_checksums(folder: str, model: str) -> None:
    for name, expected in known_checksums(model).items():
        digest = files.checksum(os.path.join(folder, name))
        if digest != expected:
            raise InputError(
                f"the SHA-256 of {name} is {digest} instead of {expected}"
            )
