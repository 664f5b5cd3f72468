"""The output folder of a pre-training: which kind of model is trained there.

No tensor's shape tells what a token may look at, by how many heads, or what is
predicted, and there is no release to ask until a run is done.
`pretraining.json` tells it from before the first step, as `output_folder` has
it for fine-tuning.
"""

import json
import os
import secrets
from collections.abc import Mapping
from typing import Any

from absl import logging

from bert_tf import files
from bert_tf.config import BertConfig
from bert_tf.errors import InputError
from bert_tf.interop.companions import read_companions
from bert_tf.jobs import output_folder

FACTS = "pretraining.json"


def of_config(config: BertConfig) -> dict[str, Any]:
    """The part of a kind that a configuration tells."""
    names = ("attention_direction", "num_attention_heads", "hidden_act")
    return {name: getattr(config, name) for name in names}


def verify(
    folder: str,
    release: str,
    kind: Mapping[str, Any],
    random_seed: int | None = None,
) -> None:
    """Compares a model with the one that was trained in a folder, if any.

    Another seed is logged: the steps that are done had the old one.

    Args:
      folder: The output folder.
      release: The folder of its release. It is asked where nothing is noted, as
        in earlier versions.
      kind: Values by flags, objective and next_sentence, and by entries of the
        configuration, as attention_direction. One that does not matter to the
        run is left out.
      random_seed: The seed of the training; None without training.

    Raises:
      InputError: They differ.
    """
    before = output_folder.known(folder, FACTS) or _kind_of(release)
    for name, value in kind.items():
        known = before.get(name, value)
        if known != value:
            raise InputError(
                f"expected {name}={_word(known)}, as the model in {folder} "
                "was trained, or another --output_dir. Received: "
                f"{_word(value)}"
            )
    seed = before.get("random_seed", random_seed)
    if random_seed not in (None, seed):
        logging.warning(
            "%s was trained with --random_seed=%d, not %d: steps that are done "
            "stay as they are, and the order of the examples changes",
            folder,
            seed,
            random_seed,
        )


def claim(folder: str, kind: Mapping[str, Any], random_seed: int) -> None:
    """Notes the kind and seed of a training that `verify` accepts.

    What is known of one that has begun stays as it is.
    """
    output_folder.claim(folder, kind, {"random_seed": random_seed}, FACTS)


def released(kind: Mapping[str, Any]) -> dict[str, Any]:
    """What a release says of the kind, in the terms of `Pretrained`."""
    facts: dict[str, Any] = {}
    if not kind["next_sentence"]:
        # Its other head is there, and random.
        facts["head"] = "masked_lm"
    if kind["objective"] != "masked_lm":
        facts["objective"] = kind["objective"]
    return facts


def require_writable(folder: str) -> None:
    """Sees whether files can be written to a folder, or it is new.

    Nothing is made that stays.

    Raises:
      InputError: It is a file, or cannot be written to.
    """
    if not files.exists(folder):
        return
    if not files.is_directory(folder):
        raise InputError(
            "expected --output_dir to be a directory, or new. Received: the "
            f"file {folder}"
        )
    # A name of its own: other workers try the same, perhaps in this place.
    probe = os.path.join(folder, f".writable-{secrets.token_hex(4)}")
    with files.atomic_writer(probe):
        pass
    files.remove(probe)


def _kind_of(release: str) -> dict[str, Any]:
    """That of a release, as `verify` takes it; empty where there is none."""
    found = read_companions(release)
    if "config" not in found:
        return {}
    return {
        **of_config(found["config"]),
        "objective": found.get("objective", "masked_lm"),
        "next_sentence": found.get("head") != "masked_lm",
    }


def _word(value: Any) -> str:
    """A value as on a command line."""
    return value if isinstance(value, str) else json.dumps(value)
