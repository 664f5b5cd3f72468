"""Writes a classifier of transformers as an optimized ONNX file.

    python onnx_export.py --model=FOLDER --output=model.onnx

ONNX Runtime's optimizer for BERT fuses attention, layer norm with its residual,
and GELU with its bias. It recognizes attention only as torch's older exporter
writes the plain ("eager") form. It needs onnxruntime.txt, nothing of bert_tf.
"""

import argparse
import pathlib

import torch
from onnxruntime.transformers import optimizer
from transformers import AutoModelForSequenceClassification

INPUTS = ["input_ids", "attention_mask", "token_type_ids"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--output", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    model = AutoModelForSequenceClassification.from_pretrained(
        arguments.model, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    plain = str(arguments.output.with_suffix(".plain.onnx"))
    axes = {0: "batch", 1: "sequence"}
    # An exporter may take a size of 1 for a constant.
    example = torch.ones((2, 7), dtype=torch.int64)
    torch.onnx.export(
        model,
        (example,) * len(INPUTS),
        plain,
        input_names=INPUTS,
        output_names=["logits"],
        dynamic_axes=dict.fromkeys(INPUTS, axes) | {"logits": {0: "batch"}},
        opset_version=17,
        dynamo=False,
    )
    optimized = optimizer.optimize_model(
        plain,
        model_type="bert",
        num_heads=model.config.num_attention_heads,
        hidden_size=model.config.hidden_size,
    )
    fused = optimized.get_fused_operator_statistics()["Attention"]
    if fused != model.config.num_hidden_layers:
        raise SystemExit(
            f"error: ONNX Runtime fused the attention of {fused} of "
            f"{model.config.num_hidden_layers} layers; the file would be slow"
        )
    optimized.save_model_to_file(str(arguments.output))


if __name__ == "__main__":
    main()
