"""A classifier of transformers as an ONNX file, made to be fast.

    python onnx_export.py --model=FOLDER --output=model.onnx

ONNX Runtime's own optimizer for BERT puts attention, layer norm with its
residual, and GELU with its bias into one operation each. Of the forms that
torch writes it knows that of the older exporter with plain ("eager") attention;
in the others it leaves the attention as it is.

It needs what onnxruntime.txt lists, and nothing of bert_tf.
"""

import argparse
import pathlib

import torch
from onnxruntime.transformers import optimizer
from transformers import AutoModelForSequenceClassification

INPUTS = ["input_ids", "attention_mask", "token_type_ids"]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--output", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    model = AutoModelForSequenceClassification.from_pretrained(
        arguments.model, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    written = arguments.output.with_suffix(".written.onnx")
    write(model, written)
    optimized = optimizer.optimize_model(
        str(written),
        model_type="bert",
        num_heads=model.config.num_attention_heads,
        hidden_size=model.config.hidden_size,
    )
    expect_attention(optimized, model.config.num_hidden_layers)
    optimized.save_model_to_file(str(arguments.output))


def write(model, path: pathlib.Path) -> None:
    """Writes the model as it is, for any number and length of texts."""
    both = {0: "batch", 1: "sequence"}
    # No size is 1, which an exporter may take for a constant.
    example = torch.ones((2, 7), dtype=torch.int64)
    torch.onnx.export(
        model,
        (example,) * len(INPUTS),
        str(path),
        input_names=INPUTS,
        output_names=["logits"],
        dynamic_axes=dict.fromkeys(INPUTS, both) | {"logits": {0: "batch"}},
        opset_version=17,
        dynamo=False,
    )


def expect_attention(optimized, count: int) -> None:
    """Stops where the file would be slower than it can be."""
    found = optimized.get_fused_operator_statistics()["Attention"]
    if found != count:
        raise SystemExit(
            f"error: expected the attention of {count} layers as one operation "
            f"each. Received: {found}; the exporter writes another form now"
        )


if __name__ == "__main__":
    main()
