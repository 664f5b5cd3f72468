"""Models on the Hugging Face Hub: `hf://owner/name[@revision]`.

The files go through huggingface_hub's cache, so that what was downloaded once
is there without a network too. HF_HOME, HF_ENDPOINT, HF_TOKEN and
HF_HUB_OFFLINE mean what they mean there.
"""

import contextlib
import json
import posixpath
import re
from collections.abc import Iterator
from typing import Any

from absl import logging

from bert_tf.errors import InputError
from bert_tf.interop import checkpoint, huggingface_weights

SCHEME = "hf://"

# What `huggingface.read` reads. Folders hold the same in formats of others.
_FILES = (
    "config.json",
    "vocab.txt",
    "tokenizer.json",
    "tokenizer_config.json",
    "added_tokens.json",
    huggingface_weights.WHOLE,
    huggingface_weights.INDEX,
    "model-*-of-*.safetensors",
)
_FOLDERS = ("*/*",)

_REFERENCE = re.compile(r"hf://([\w.-]+/[\w.-]+)(?:@([\w./-]+))?", re.ASCII)
_SECONDS_TO_ANSWER = 10.0
# Answers of HTTP that say no, and not that something is out of order.
_REFUSED = (401, 403, 404)


def download(reference: str) -> str:
    """Downloads what there is to read of a model; pickles never.

    Args:
      reference: `hf://owner/name`, with `@` and a branch, a tag or a commit
        behind it unless it is `main`.

    Returns:
      The folder in the cache.

    Raises:
      InputError: The reference is malformed; there is no such repository or
        revision, or none for this user; it has no safetensors; the Hub cannot
        be reached and the cache does not have it; or huggingface_hub is not
        installed.
    """
    name, revision = _parse(reference)
    hub = _import_hub()
    with _blaming(hub, reference):
        names = _list_files(hub, name, revision)
    if names is not None:
        _check_files(names, name)
    with _blaming(hub, reference):
        return hub.snapshot_download(
            name,
            revision=revision,
            allow_patterns=list(_FILES),
            ignore_patterns=list(_FOLDERS),
            local_files_only=names is None,
        )


def _parse(reference: str) -> tuple[str, str | None]:
    """Splits a reference into the name of a repository and a revision."""
    match = _REFERENCE.fullmatch(reference.rstrip("/"))
    if not match or ".." in reference:
        raise InputError(
            "expected hf://OWNER/NAME or hf://OWNER/NAME@REVISION, such as "
            f"hf://google-bert/bert-base-uncased. Received: {reference}"
        )
    return match[1], match[2]


def _import_hub() -> Any:
    try:
        import huggingface_hub
        import huggingface_hub.errors
    except ImportError as error:
        raise InputError(
            "expected the package huggingface_hub, to read from the Hub. "
            f"Received: {error}; pip install 'bert-tf[huggingface]'"
        ) from None
    return huggingface_hub


def _list_files(hub: Any, name: str, revision: str | None) -> set[str] | None:
    """The files at a repository's root; None if the Hub cannot be asked."""
    try:
        info = hub.HfApi().model_info(
            name, revision=revision, timeout=_SECONDS_TO_ANSWER
        )
    except (OSError, hub.errors.HTTPError) as error:
        response = getattr(error, "response", None)
        if response is not None and response.status_code in _REFUSED:
            raise
        reason = " ".join(str(error).split()) or type(error).__name__
        logging.warning("%s; looking in the cache for %s", reason, name)
        return None
    names = {file.rfilename for file in info.siblings or ()}
    return {name for name in names if "/" not in name}


def _check_files(names: set[str], repository: str) -> None:
    """Raises InputError if no file of a repository holds weights for us."""
    if names & {huggingface_weights.WHOLE, huggingface_weights.INDEX}:
        return
    other = checkpoint.find_unsupported(names)
    if other:
        folder = posixpath.basename(repository)
        raise checkpoint.unsupported_format(f"{folder}/{other}", repository)
    raise InputError(
        f"expected {huggingface_weights.WHOLE} in {repository}. Received: "
        f"{len(names)} files, none of them weights"
    )


@contextlib.contextmanager
def _blaming(hub: Any, reference: str) -> Iterator[None]:
    """Turns what huggingface_hub and its HTTP library raise into InputErrors.

    A ValueError is of a name that cannot be, or an answer that is no JSON.
    """
    try:
        yield
    except (OSError, ValueError, hub.errors.HTTPError) as error:
        raise InputError(
            f"cannot get {reference}: {_reason(hub, error)}"
        ) from error


def _reason(hub: Any, error: Exception) -> str:
    """What is wrong and what to do, in one line."""
    errors = hub.errors
    if isinstance(error, errors.GatedRepoError):
        return (
            "its owner lets in who has asked; do so on its page, then "
            "`hf auth login`, or set HF_TOKEN"
        )
    if isinstance(error, errors.RepositoryNotFoundError):
        return (
            "there is no such repository, or it is private; correct the "
            "name, or `hf auth login`, or set HF_TOKEN"
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return "the repository has no such revision"
    if isinstance(error, errors.LocalEntryNotFoundError):
        return (
            "the Hub cannot be reached, and the cache does not have it; see "
            "to the network, or give a folder"
        )
    if isinstance(error, json.JSONDecodeError):
        return "the answer is no JSON; does the network want you to log in?"
    return " ".join(str(error).split()) or type(error).__name__
