"""Models on the Hugging Face Hub: `hf://owner/name[@revision]`.

Files go through the cache of huggingface_hub, so a model that was downloaded
once can be read without a network. HF_HOME, HF_ENDPOINT, HF_TOKEN and
HF_HUB_OFFLINE work as in that package.
"""

import re
from typing import Any

from absl import logging

from bert_tf.checkpoints import sentence_transformers
from bert_tf.checkpoints.checkpoint import (
    METADATA,
    find_unsupported,
    unsupported_format,
)
from bert_tf.checkpoints.huggingface_weights import INDEX, WHOLE
from bert_tf.errors import InputError, missing, wrong_value

SCHEME = "hf://"

# The files that `huggingface.read` reads. `*` matches slashes too, so
# `download` excludes weights in folders, which are in other formats.
_FILES = (
    METADATA,
    "config.json",
    "vocab.txt",
    "tokenizer.json",
    "tokenizer_config.json",
    "added_tokens.json",
    *sentence_transformers.FILES,
    INDEX,
    WHOLE,
    "model-*-of-*.safetensors",
)

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
      InputError: If the reference is malformed, the model cannot be downloaded
        and is not in the cache, it has no safetensors, or huggingface_hub is
        not installed.
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
    try:
        names = _list_files(hub, name, revision)
        if names is not None and not names & {WHOLE, INDEX}:
            if other := find_unsupported(names):
                raise unsupported_format(other, name)
            raise InputError(
                f"{name} has no {WHOLE} or {INDEX} among the {len(names)} "
                "files at its root. Pass another repository."
            )
        return str(
            hub.snapshot_download(
                name,
                revision=revision,
                allow_patterns=list(_FILES),
                ignore_patterns=["*/*.safetensors"],
                local_files_only=names is None,
            )
        )
    except InputError:
        raise
    except (OSError, ValueError, hub.errors.HTTPError) as error:
        # ValueError: an impossible name, or an answer that is not JSON.
        cause = _in_one_line(error).removesuffix(".")
        if isinstance(error, hub.errors.LocalEntryNotFoundError):
            cause = "the Hub cannot be reached, and the cache lacks the model"
        raise InputError(
            f"Cannot get {reference}: {cause}. Check the name and the network, "
            "run `hf auth login` for a private or gated model, or pass the "
            "path of a local folder."
        ) from error


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


def _in_one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
