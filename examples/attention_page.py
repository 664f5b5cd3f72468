"""Writes an HTML page that shows what the heads of a model attend to in a text.

    python examples/attention_page.py --text="The cat sat on the mat." \\
        --text_b="It was soft." --init_checkpoint=uncased_L-12_H-768_A-12

Open attention.html in a browser, choose a layer and a head, and point at a
word. The page loads nothing. It can join tokens into words: as in Clark et al.
(2019), attention to a word is the sum over its tokens, and attention from a
word is their mean. A text that is too long for the model is an error.
"""

from bert_tf import start_tensorflow

start_tensorflow.quietly()

import argparse
import base64
import json
import pathlib
import re
import sys
import unicodedata
import zlib
from collections.abc import Sequence

import numpy as np
from keras import ops

import bert_tf

TEMPLATE = pathlib.Path(__file__).with_suffix(".html")
MASK = "[MASK]"
# Weights are rounded to 12 bits; the page shows tenths of a percent.
LEVELS = 4095


def tokens_of(
    tokenizer: bert_tf.FullTokenizer, text: str
) -> list[tuple[str, int, int]]:
    """Returns tokens, their starts and ends; keeps [MASK] as one token."""
    tokens, end = [], 0
    for part in re.split(r"(\[MASK\])", text):
        start, end = end, end + len(part)
        if part == MASK:
            tokens.append((MASK, start, end))
            continue
        for token in tokenizer.tokenize_with_offsets(part):
            tokens.append((token.text, start + token.start, start + token.end))
    return tokens


def describe(
    tokenizer: bert_tf.FullTokenizer, texts: Sequence[str]
) -> dict[str, list]:
    """Describes the sequence `[CLS] a [SEP]` or `[CLS] a [SEP] b [SEP]`.

    Returns:
      `pieces`: the tokens. `words`: for each word its text as it was written,
      the position of its first token and the position after its last token.
      `directions`: "ltr" or "rtl" for each text.
    """
    pieces: list[str] = []
    words: list[dict] = []

    def add(token: str, segment: int, text: str | None = None, spaced=True):
        words.append(
            {
                "text": text or token,
                "first": len(pieces),
                "end": len(pieces) + 1,
                "segment": segment,
                "special": text is None,
                "spaced": spaced,
            }
        )
        pieces.append(token)

    add("[CLS]", 0)
    for segment, text in enumerate(texts):
        begin = last = 0
        for token, start, end in tokens_of(tokenizer, text):
            if token.startswith("##"):
                pieces.append(token)
                words[-1] |= {"text": text[begin:end], "end": len(pieces)}
            else:
                begin = start
                spaced = last == 0 or bool(re.search(r"\s", text[last:start]))
                add(token, segment, text[start:end], spaced)
            last = end
        add("[SEP]", segment)
    directions = [*map(direction, texts)]
    return {"pieces": pieces, "words": words, "directions": directions}


def direction(text: str) -> str:
    """Returns "rtl" or "ltr", by the first character that has a direction."""
    for character in text:
        kind = unicodedata.bidirectional(character)
        if kind in ("L", "R", "AL"):
            return "ltr" if kind == "L" else "rtl"
    return "ltr"


def attend(
    model: bert_tf.BertModel, ids: Sequence[int], words: Sequence[dict]
) -> np.ndarray:
    """Returns the attention of L layers with N heads, floats [L, N, S, S].

    Each of the S tokens on the third axis attends to those on the fourth.
    """
    segments = [
        word["segment"]
        for word in words
        for _ in range(word["first"], word["end"])
    ]
    outputs = model(
        {"input_ids": np.array([ids]), "segment_ids": np.array([segments])}
    )
    return np.stack([ops.convert_to_numpy(x)[0] for x in outputs["attentions"]])


def page_of(described: dict[str, list], weights: np.ndarray, name: str) -> str:
    """Returns the HTML page of weights, floats [L, N, S, S], of a model."""
    layers, heads = weights.shape[:2]
    sizes = {"layers": layers, "heads": heads, "levels": LEVELS}
    facts = json.dumps({**described, **sizes, "model": name})
    whole = np.rint(np.clip(weights, 0, 1) * LEVELS).astype("<u2")
    # The high bytes first: most are 0, so they compress well.
    low, high = whole.reshape(-1, 1).view(np.uint8).T
    packed = base64.b64encode(zlib.compress(high.tobytes() + low.tobytes()))
    html = TEMPLATE.read_text(encoding="utf-8")
    # Without "<" no text can end the script. Texts are inserted last, as they
    # may contain "{{weights}}".
    html = html.replace("{{weights}}", packed.decode())
    return html.replace("{{facts}}", facts.replace("<", "\\u003c"), 1)


def main() -> None:
    """Runs the model on the text and writes the page."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--init_checkpoint", required=True)
    parser.add_argument("--text", required=True)
    parser.add_argument("--text_b", help="the second text of a pair")
    parser.add_argument("--output", default="attention.html")
    options = parser.parse_args()
    path = options.init_checkpoint
    tokenizer = bert_tf.FullTokenizer.from_pretrained(path)
    model = bert_tf.BertModel.from_pretrained(path, output_attentions=True)
    texts = [options.text, options.text_b]
    described = describe(
        tokenizer, [text for text in texts if text is not None]
    )
    ids = tokenizer.convert_tokens_to_ids(described["pieces"])
    most = model.config.max_position_embeddings
    if len(ids) > most:
        raise bert_tf.InputError(
            f"The text has {len(ids)} tokens with [CLS] and [SEP], but the "
            f"model has {most} positions. Shorten the text."
        )
    weights = attend(model, ids, described["words"])
    # OWNER/NAME of a model, or FOLDER/PREFIX of a checkpoint.
    name = "/".join(pathlib.PurePath(path).parts[-2:])
    page = page_of(described, weights, name)
    pathlib.Path(options.output).write_text(page, encoding="utf-8")
    print(f"Wrote {options.output}, {len(page) / 1e6:.1f} MB")


if __name__ == "__main__":
    try:
        main()
    except (ImportError, OSError, bert_tf.InputError) as error:
        sys.exit(f"attention_page.py: error: {error}")
