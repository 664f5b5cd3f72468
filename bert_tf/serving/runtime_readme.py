"""The README beside a converted model: how to run it, and what it answers."""

import json
import textwrap
from collections.abc import Mapping, Sequence

import numpy as np

from bert_tf.serving import readme
from bert_tf.serving.exported import Arrays, Exported
from bert_tf.serving.runtimes import RUNTIMES

_SNIPPETS = {
    "onnx": """\
import numpy as np
import onnxruntime

session = onnxruntime.InferenceSession("{file}")
names = [output.name for output in session.get_outputs()]
features = {features}
answer = dict(zip(names, session.run(names, features)))""",
    "litert": """\
import numpy as np
from ai_edge_litert.interpreter import Interpreter

# Keep the interpreter for as long as its signature is asked.
interpreter = Interpreter("{file}")
model = interpreter.get_signature_runner()
features = {features}
answer = model(**features)""",
}
_INSTALL = {"onnx": "onnxruntime", "litert": "ai-edge-litert"}


def runtime_readme(
    exported: Exported,
    name: str,
    files: Sequence[str],
    table: str,
    features: Mapping[str, np.ndarray],
    answer: Arrays,
) -> str:
    """Writes what somebody who was handed the folder needs.

    Args:
      exported: What was converted.
      name: The runtime, a key of `RUNTIMES`.
      files: The names of the models, the float32 one first.
      table: They, and what they are worth; see `comparison.table`.
      features: What `Exported.example` becomes.
      answer: What the first of the models says to it.

    Returns:
      Markdown.
    """
    card = exported.card
    snippet = _SNIPPETS[name].format(
        file=files[0], features=_in_python(features)
    )
    answers = "\n".join(
        f"{key} = {readme.in_json(values)}" for key, values in answer.items()
    )
    takes = readme.specs_of(exported.token_inputs)
    gives = readme.specs_of(exported.numbers)
    parts = [
        f"# {card['name']}: {card['kind']}, for {RUNTIMES[name].title}",
        "Made from an export of bert_tf by `convert_saved_model.py`.",
        table,
        "## Run it",
        f"```\npip install {_INSTALL[name]} numpy\n```",
        f"```python\n{snippet}\n```",
        f"answers\n\n```\n{answers}\n```\n\nto {_texts(exported)}. The last "
        "digits depend on the machine.",
        "## What it takes and gives",
        'B rows, at least one, and lengths that are those of the longest: "?".',
        f"| takes | gives |\n|---|---|\n| {takes} | {gives} |",
        _meaning(exported),
        "## From text to ids",
        _encoding(exported),
        "## Where it is from",
        f"Checkpoint: {card['source'] or 'not known'}. Weights of the export, "
        f"sha256: `{card['weights']['sha256']}`.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _in_python(features: Mapping[str, np.ndarray]) -> str:
    """Arrays as the source of a dict."""
    lines = [
        f'    "{name}": np.array({values.tolist()}, np.int32),'
        for name, values in features.items()
    ]
    return "\n".join(["{", *lines, "}"])


def _texts(exported: Exported) -> str:
    texts = {
        name: np.char.decode(values.astype(bytes), "utf-8").tolist()[0]
        for name, values in exported.example().items()
    }
    return f"`{json.dumps(texts, ensure_ascii=False)}`"


def _meaning(exported: Exported) -> str:
    if "labels.txt" not in exported.assets:
        return ""
    what = "`tag_ids` are" if "tag_ids" in exported.numbers else "Columns are"
    return f"{what} the lines of `labels.txt`, from 0."


def _encoding(exported: Exported) -> str:
    encoding = exported.card["encoding"]
    casing = ", ".join(
        f"{name}={encoding[name]}"
        for name in ("do_lower_case", "strip_accents")
    )
    text = f"""\
`[CLS] text [SEP]`, or `[CLS] first [SEP] second [SEP]`: ids are the lines of
`vocab.txt`, from 0; `input_mask` is 1 for each of them and 0 for the padding
behind; `segment_ids` are 1 from the second text on. No row was longer than
{encoding["max_seq_length"]} in training, and what is longer than the model
has positions for is an error. The export's signature `tokenize` makes all
three; ids alone, without TensorFlow:"""
    return f"""\
{textwrap.fill(text, 80, break_on_hyphens=False)}

```python
from bert_tf import FullTokenizer

tokenizer = FullTokenizer("vocab.txt", {casing})
ids = tokenizer.encode("...")
```"""
