"""Google's published models by name, such as `uncased_L-12_H-768_A-12`.

The names and dates match the downloads that google-research/bert lists. The
first use of a name downloads the model's zip and extracts the files that a
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
import zlib

from bert_tf.base import files
from bert_tf.errors import InputError, reason, wrong_value

CACHE = "BERT_TF_CACHE"
MODELS_URL = "BERT_TF_MODELS_URL"
GOOGLE = "https://storage.googleapis.com/bert_models"

# What failed downloads, full disks and damaged zip files raise.
_FAILURES = (
    *(OSError, EOFError, ValueError, RuntimeError),
    *(zipfile.BadZipFile, zlib.error),
)

# The files that a model needs. Google's zips also have the graph of TF1
# (bert_model.ckpt.meta), which nothing reads.
FILES = (
    "bert_config.json",
    "vocab.txt",
    "bert_model.ckpt.index",
    "bert_model.ckpt.data-00000-of-00001",
)

_NAMES_BY_DATE = {
    "2018_10_18": (
        "uncased_L-12_H-768_A-12",
        "uncased_L-24_H-1024_A-16",
        "cased_L-12_H-768_A-12",
        "cased_L-24_H-1024_A-16",
    ),
    "2018_11_03": (
        "multilingual_L-12_H-768_A-12",
        "chinese_L-12_H-768_A-12",
    ),
    "2018_11_23": ("multi_cased_L-12_H-768_A-12",),
    "2019_05_30": (
        "wwm_uncased_L-24_H-1024_A-16",
        "wwm_cased_L-24_H-1024_A-16",
    ),
    "2020_02_20": tuple(
        f"uncased_L-{layers}_H-{size}_A-{size // 64}"
        for layers in (2, 4, 6, 8, 10, 12)
        for size in (128, 256, 512, 768)
    ),
}


# `DATE/NAME` of each model, by `NAME` and by `DATE/NAME`. The oldest model of a
# name wins: uncased_L-12_H-768_A-12 is the model of 2018, as in the paper.
MODELS = {
    key: f"{date}/{name}"
    for date, names in reversed(_NAMES_BY_DATE.items())
    for name in names
    for key in (name, f"{date}/{name}")
}

# SHA-256 of the files of a model, in the order of FILES. Google publishes none.
# These are from NVIDIA/DeepLearningExamples, in the file
# PyTorch/LanguageModeling/BERT/data/GooglePretrainedWeightDownloader.py.
SHA256 = {
    "2018_10_18/uncased_L-12_H-768_A-12": (
        "7b4e5f53efbd058c67cda0aacfafb340113ea1b5797d9ce6ee411704ba21fcbc",
        "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
        "04c1323086e2f1c5b7c0759d8d3e484afbb0ab45f51793daab9f647113a0117b",
        "58580dc5e0bf0ae0d2efd51d0e8272b2f808857f0a43a88aaf7549da6d7a8a84",
    ),
    "2018_10_18/uncased_L-24_H-1024_A-16": (
        "bfa42236d269e2aeb3a6d30412a33d15dbe8ea597e2b01dc9518c63cc6efafcb",
        "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
        "68b52f2205ffc64dc627d1120cf399c1ef1cbc35ea5021d1afc889ffe2ce2093",
        "bc6b3363e3be458c99ecf64b7f472d2b7c67534fd8f564c0556a678f90f4eea1",
    ),
    "2018_10_18/cased_L-12_H-768_A-12": (
        "f11dfb757bea16339a33e1bf327b0aade6e57fd9c29dc6b84f7ddb20682f48bc",
        "eeaa9875b23b04b4c54ef759d03db9d1ba1554838f8fb26c5d96fa551df93d02",
        "517d6ef5c41fc2ca1f595276d6fccf5521810d57f5a74e32616151557790f7b1",
        "734d5a1b68bf98d4e9cb6b6692725d00842a1937af73902e51776905d8f760ea",
    ),
    "2018_10_18/cased_L-24_H-1024_A-16": (
        "7adb2125c8225da495656c982fd1c5f64ba8f20ad020838571a3f8a954c2df57",
        "eeaa9875b23b04b4c54ef759d03db9d1ba1554838f8fb26c5d96fa551df93d02",
        "ef42a53f577fbe07381f4161b13c7cab4f4fc3b167cec6a9ae382c53d18049cf",
        "6ff33640f40d472f7a16af0c17b1179ca9dcc0373155fb05335b6a4dd1657ef0",
    ),
    "2018_11_03/multilingual_L-12_H-768_A-12": (
        "49063bb061390211d2fdd108cada1ed86faa5f90b80c8f6fdddf406afa4c4624",
        "87b44292b452f6c05afa49b2e488e7eedf79ea4f4c39db6f2f4b37764228ef3f",
        "87c372c1a3b1dc7effaaa9103c80a81b3cbab04c7933ced224eec3b8ad2cc8e7",
        "3cd83912ebeb0efe2abf35c9f1d5a515d8e80295e61c49b75c8853f756658429",
    ),
    "2018_11_03/chinese_L-12_H-768_A-12": (
        "7aaad0335058e2640bcb2c2e9a932b1cd9da200c46ea7b8957d54431f201c015",
        "45bbac6b341c319adc98a532532882e91a9cefc0329aa57bac9ae761c27b291c",
        "46315546e05ce62327b3e2cd1bed22836adcb2ff29735ec87721396edb21b82e",
        "756699356b78ad0ef1ca9ba6528297bcb3dd1aef5feadd31f4775d7c7fc989ba",
    ),
    "2018_11_23/multi_cased_L-12_H-768_A-12": (
        "e76c3964bc14a8bb37a5530cdc802699d2f4a6fddfab0611e153aa2528f234f0",
        "fe0fda7c425b48c516fc8f160d594c8022a0808447475c1a7c6d6479763f310c",
        "7d8509c2a62b4e300feb55f8e5f1eef41638f4998dd4d887736f42d4f6a34b37",
        "55b8a2df41f69c60c5180e50a7c31b7cdf6238909390c4ddf05fbc0d37aa1ac5",
    ),
}


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
            for file, expected in zip(
                FILES, SHA256.get(model, ()), strict=False
            ):
                digest = files.checksum(os.path.join(unfinished, file))
                if digest != expected:
                    raise InputError(
                        f"the SHA-256 of {file} is {digest} instead of "
                        f"{expected}"
                    )
    except _FAILURES as error:
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
    """Downloads a zip, and extracts the files that a model needs to a folder.

    The zips of 2020 have them at the top, older ones in a folder. Names in a
    zip are only compared, never used as paths.
    """
    import keras

    try:
        # Keras prints progress, but stdout may be a file of answers.
        with contextlib.redirect_stdout(sys.stderr):
            path = keras.utils.get_file("model.zip", url, cache_dir=folder)
    except Exception as error:  # Keras raises a plain Exception.
        raise InputError(reason(error)) from error
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
