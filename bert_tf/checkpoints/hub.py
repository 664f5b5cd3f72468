"""Models on the Hugging Face Hub: `hf://owner/name[@revision]`.

Files go through the cache of huggingface_hub, so a model that was downloaded
once can be read without a network. HF_HOME, HF_ENDPOINT, HF_TOKEN and
HF_HUB_OFFLINE work as in that package.

huggingface_hub never compares the files in its cache with anything, so the
small files are compared with their checksums here. safetensors rejects weight
files of the wrong size; `hf cache verify` compares their checksums.
"""

import contextlib
import fnmatch
import hashlib
import json
import os
import pathlib
import re
from collections.abc import Iterator
from typing import Any

from absl import logging

from bert_tf.base import files
from bert_tf.base.packages import missing
from bert_tf.checkpoints import sentence_transformers
from bert_tf.checkpoints.checkpoint import find_unsupported, unsupported_format
from bert_tf.checkpoints.huggingface_weights import INDEX, WHOLE
from bert_tf.errors import InputError, in_file, wrong_value

SCHEME = "hf://"

# The files that `huggingface.read` reads. Folders in a repository contain the
# same model in other formats. A `*` matches slashes too.
_SMALL_FILES = (
    "config.json",
    "vocab.txt",
    "tokenizer.json",
    "tokenizer_config.json",
    "added_tokens.json",
    *sentence_transformers.FILES,
    INDEX,
)
_FILES = (*_SMALL_FILES, WHOLE, "model-*-of-*.safetensors")
_IGNORED = ("*/*.safetensors",)

_CHECKSUM = re.compile("[0-9a-f]{40}|[0-9a-f]{64}")
_REFERENCE = re.compile(r"hf://([\w.-]+/[\w.-]+)(?:@([\w./-]+))?", re.ASCII)
_TIMEOUT_SECONDS = 10.0
# HTTP status codes of a refusal, after which the cache is not tried.
_REFUSED = (401, 403, 404)


def download(reference: str) -> str:
    """Downloads a model without pickle files; returns its cached folder.

    Args:
      reference: `hf://owner/name`, or `hf://owner/name@revision` with a branch,
        tag or commit.

    Raises:
      InputError: If the reference is malformed; the repository or the revision
        does not exist or is not accessible; it has no safetensors; the Hub
        cannot be reached and the cache lacks the model; a file in the cache
        was changed; or huggingface_hub is not installed.
    """
    match = _REFERENCE.fullmatch(reference.rstrip("/"))
    if not match or ".." in reference:
        raise wrong_value(
            "The reference to a model of the Hub",
            "hf://OWNER/NAME or hf://OWNER/NAME@REVISION, such as "
            "hf://google-bert/bert-base-uncased",
            reference,
        )
    name, revision = match[1], match[2]
    try:
        import huggingface_hub as hub
        import huggingface_hub.errors
    except ImportError as error:
        raise missing(
            f"Reading {reference}", f"huggingface_hub ({error})", "huggingface"
        ) from None
    with _converting_errors(hub, reference):
        names = _list_files(hub, name, revision)
    if names is not None and not names & {WHOLE, INDEX}:
        other = find_unsupported(names)
        if other:
            raise unsupported_format(other, name)
        raise InputError(
            f"{name} has no {WHOLE} or {INDEX} among the {len(names)} files at "
            "its root. Pass another repository."
        )
    with _converting_errors(hub, reference):
        folder = hub.snapshot_download(
            name,
            revision=revision,
            allow_patterns=list(_FILES),
            ignore_patterns=list(_IGNORED),
            local_files_only=names is None,
        )
    _check_cached(folder)
    return folder


def _check_cached(folder: str) -> None:
    """Compares the small files of a model in the cache with their checksums.

    Each file in the folder is a link to a file that is named by its checksum.
    The Hub's checksums are git's SHA-1 and, for large files, SHA-256; a mirror
    may use a plain SHA-1, or other names, which are ignored.

    Raises:
      InputError: A file was changed.
    """
    for link in sorted(pathlib.Path(folder).rglob("*")):
        name = link.relative_to(folder).as_posix()
        path = os.path.realpath(link)
        checksum = os.path.basename(path)
        # Other programs may have downloaded other files, which may be large.
        is_small = any(fnmatch.fnmatch(name, x) for x in _SMALL_FILES)
        if not is_small or not _CHECKSUM.fullmatch(checksum):
            continue
        with files.input_errors("read", path), open(path, "rb") as file:
            content = file.read()
        git = b"blob %d\0" % len(content) + content
        if checksum not in (
            hashlib.sha1(git, usedforsecurity=False).hexdigest(),
            hashlib.sha1(content, usedforsecurity=False).hexdigest(),
            hashlib.sha256(content).hexdigest(),
        ):
            raise in_file(
                link,
                "the file was changed after the download. Remove "
                f"{path} to download it again; to change a model, copy it and "
                "pass the path of the copy.",
            )


def _list_files(hub: Any, name: str, revision: str | None) -> set[str] | None:
    """Returns the files at a repository's root; None without a connection."""
    try:
        info = hub.HfApi().model_info(
            name, revision=revision, timeout=_TIMEOUT_SECONDS
        )
    except (OSError, hub.errors.HTTPError) as error:
        response = getattr(error, "response", None)
        if response is not None and response.status_code in _REFUSED:
            raise
        logging.warning(
            "%s; looking for %s in the cache", _in_one_line(error), name
        )
        return None
    names = {file.rfilename for file in info.siblings or ()}
    return {name for name in names if "/" not in name}


@contextlib.contextmanager
def _converting_errors(hub: Any, reference: str) -> Iterator[None]:
    """Turns errors of huggingface_hub and its HTTP library into InputErrors.

    Both libraries raise ValueError for an impossible name or for an answer that
    is not JSON.
    """
    errors = hub.errors
    # The order matters: GatedRepoError is a RepositoryNotFoundError.
    reasons = {
        errors.GatedRepoError: (
            "the model is gated; request access on its page, then run "
            "`hf auth login` or set HF_TOKEN"
        ),
        errors.RepositoryNotFoundError: (
            "the repository does not exist or is private; correct the name, "
            "run `hf auth login` or set HF_TOKEN"
        ),
        errors.RevisionNotFoundError: "the repository has no such revision",
        errors.LocalEntryNotFoundError: (
            "the Hub cannot be reached and the cache does not have the model; "
            "check the network, or pass the path of a local folder"
        ),
        json.JSONDecodeError: (
            "the answer is not JSON; does the network require a login?"
        ),
    }
    try:
        yield
    except (OSError, ValueError, errors.HTTPError) as error:
        explanations = [
            text for kind, text in reasons.items() if isinstance(error, kind)
        ]
        reason = explanations[0] if explanations else _in_one_line(error)
        raise InputError(f"cannot get {reference}: {reason}") from error


def _in_one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
