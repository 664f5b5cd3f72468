"""Converts an export for ONNX Runtime or LiteRT.

See bert_tf/jobs/convert_saved_model.py.
"""

from bert_tf import command

if __name__ == "__main__":
    command.run_job("convert_saved_model")
