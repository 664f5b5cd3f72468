"""Converts an export for ONNX Runtime or LiteRT.

See bert_tf/jobs/convert_saved_model.py.
"""

from bert_tf import cli
from bert_tf.jobs import convert_saved_model

if __name__ == "__main__":
    cli.main(convert_saved_model.run)
