"""The number of Python statements for six jobs, here and in other libraries.

    python benchmarks/statements.py

runs each function below on a small model with random weights, which it makes,
counts the statements of the function's body, imports included, and prints a
table in Markdown. The functions follow each library's documentation. It needs
its own environment:

    pip install '.[tensorflow]' 'keras-hub==0.32.*' 'transformers==5.23.*' \
        sentence-transformers peft datasets accelerate

The training data are three lists that every function has: TEXTS, their
LABELS, and the NAMES of the labels.
"""

import ast
import contextlib
import inspect
import os
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable

TEXTS = ["the film is good", "the film is bad", "not bad", "not good"] * 4
NAMES = ["bad", "good"]
LABELS = ["good", "bad", "good", "bad"] * 4
NUMBERS = [NAMES.index(label) for label in LABELS]
TEXT = "the film is not bad"
MASKED = "the film is [MASK]"


# Fine-tune a model on strings, and predict a label.


def fine_tune_ours(path):
    import bert_tf

    model = bert_tf.TextClassifier.from_pretrained(path, labels=NAMES)
    model.fit(TEXTS, LABELS)
    return model.predict(TEXT)["label"]


def fine_tune_keras_hub(path):
    import keras_hub

    model = keras_hub.models.BertTextClassifier.from_preset(path, num_classes=2)
    model.fit(TEXTS, NUMBERS)
    return NAMES[model.predict([TEXT])[0].argmax()]


def fine_tune_peers(path):
    import datasets
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    data = datasets.Dataset.from_dict({"text": TEXTS, "label": NUMBERS}).map(
        lambda row: tokenizer(row["text"], truncation=True)
    )
    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        path, id2label=dict(enumerate(NAMES))
    )
    trainer = transformers.Trainer(
        model, train_dataset=data, processing_class=tokenizer
    )
    trainer.train()
    classify = transformers.pipeline(
        "text-classification", model, tokenizer=tokenizer
    )
    return classify(TEXT)[0]["label"]


# Fine-tune with low-rank adapters.


def lora_ours(path):
    import bert_tf

    model = bert_tf.TextClassifier.from_pretrained(path, labels=NAMES)
    model.enable_lora(8)
    model.fit(TEXTS, LABELS)
    return model.predict(TEXT)["label"]


def lora_keras_hub(path):
    import keras_hub

    model = keras_hub.models.BertTextClassifier.from_preset(path, num_classes=2)
    model.backbone.enable_lora(8)
    model.fit(TEXTS, NUMBERS)
    return NAMES[model.predict([TEXT])[0].argmax()]


def lora_peers(path):
    import datasets
    import peft
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    data = datasets.Dataset.from_dict({"text": TEXTS, "label": NUMBERS}).map(
        lambda row: tokenizer(row["text"], truncation=True)
    )
    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        path, id2label=dict(enumerate(NAMES))
    )
    adapted = peft.get_peft_model(
        model, peft.LoraConfig(task_type="SEQ_CLS", r=8)
    )
    trainer = transformers.Trainer(
        adapted, train_dataset=data, processing_class=tokenizer
    )
    trainer.train()
    classify = transformers.pipeline(
        "text-classification", adapted, tokenizer=tokenizer
    )
    return classify(TEXT)[0]["label"]


# Load a fine-tuned classifier and predict a label.


def classify_ours(path):
    import bert_tf

    model = bert_tf.TextClassifier.from_pretrained(path)
    return model.predict(TEXT)["label"]


def classify_keras_hub(path):
    import keras_hub

    model = keras_hub.models.BertTextClassifier.from_preset(path, num_classes=2)
    return NAMES[model.predict([TEXT])[0].argmax()]


def classify_peers(path):
    from transformers import pipeline

    model = pipeline("text-classification", path)
    return model(TEXT)[0]["label"]


# Sentence embeddings.


def embed_ours(path):
    import bert_tf

    model = bert_tf.TextEmbedder.from_pretrained(path)
    return model.predict(TEXTS).shape


def embed_keras_hub(path):
    import keras_hub

    model = keras_hub.models.BertTextEmbedder.from_preset(path)
    return model.encode_text(TEXTS).shape


def embed_peers(path):
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(path)
    return model.encode(TEXTS).shape


# The most probable word for [MASK].


def fill_mask_ours(path):
    import bert_tf

    model = bert_tf.MaskedWordPredictor.from_pretrained(path)
    return model.predict(MASKED)["words"][0][0]


def fill_mask_keras_hub(path):
    import keras_hub
    import numpy as np

    model = keras_hub.models.BertMaskedLM.from_preset(path, preprocessor=None)
    tokenizer = keras_hub.models.BertTokenizer.from_preset(
        path, special_tokens_in_strings=True
    )
    preprocess = keras_hub.models.BertTextClassifierPreprocessor(tokenizer)
    inputs = preprocess([MASKED])
    [positions] = np.where(inputs["token_ids"][0] == tokenizer.mask_token_id)
    logits = model.predict({**inputs, "mask_positions": positions[None]})
    return tokenizer.id_to_token(int(logits[0, 0].argmax()))


def fill_mask_peers(path):
    from transformers import pipeline

    model = pipeline("fill-mask", path)
    return model(MASKED)[0]["token_str"]


# A SavedModel from strings to labels or logits.


def saved_model_ours(path):
    import bert_tf

    model = bert_tf.TextClassifier.from_pretrained(path)
    return model.export("export")


def saved_model_keras_hub(path):
    import keras
    import keras_hub
    import tensorflow as tf

    model = keras_hub.models.BertTextClassifier.from_preset(path, num_classes=2)
    archive = keras.export.ExportArchive()
    archive.track(model)
    archive.add_endpoint(
        "serve",
        lambda texts: model(model.preprocessor(texts)),
        [tf.TensorSpec([None], tf.string)],
    )
    archive.write_out("export_keras_hub")


# The name of a job in the table -> the first part of the functions' names.
JOBS = {
    "fine-tune on strings, predict": "fine_tune",
    "the same with LoRA": "lora",
    "load a classifier, predict": "classify",
    "sentence embeddings": "embed",
    "fill in `[MASK]`": "fill_mask",
    "a SavedModel from strings": "saved_model",
}
# The jobs that start with a fine-tuned classifier.
READY = ("classify", "saved_model")
SIDES = {"bert_tf": "ours", "KerasHub": "keras_hub", "Hugging Face": "peers"}


def count(job: Callable[[str], object]) -> int:
    """Returns the number of statements in the body of a function."""
    [function] = ast.parse(textwrap.dedent(inspect.getsource(job))).body
    return sum(isinstance(node, ast.stmt) for node in ast.walk(function)) - 1


def make_models() -> tuple[str, str]:
    """Writes a pre-trained model and a classifier; returns their folders."""
    import bert_tf

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words += sorted({word for text in TEXTS for word in text.split()})
    config = bert_tf.BertConfig.from_name("L-2_H-64_A-2", vocab_size=len(words))
    tokenizer = bert_tf.FullTokenizer(words)
    bert_tf.BertPretrainer(config).save_pretrained(
        "pretrained", tokenizer=tokenizer
    )
    bert_tf.TextClassifier.from_pretrained(
        "pretrained", labels=NAMES
    ).save_pretrained("classifier")
    return os.path.abspath("pretrained"), os.path.abspath("classifier")


def functions(side: str) -> dict[str, Callable[[str], object]]:
    """Returns the function of a library for each job that it can do."""
    known = globals()
    names = {job: f"{job}_{side}" for job in JOBS.values()}
    return {job: known[name] for job, name in names.items() if name in known}


def run(side: str, pretrained: str, classifier: str) -> None:
    """Runs all jobs of a library."""
    for job, function in functions(side).items():
        result = function(classifier if job in READY else pretrained)
        print(f"{function.__name__}: {result}", flush=True)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        folders = make_models()
        for side in SIDES.values():
            # TensorFlow and PyTorch's compiler cannot be in one process.
            subprocess.run(
                [sys.executable, __file__, side, *folders],
                check=True,
                env={"KERAS_BACKEND": "tensorflow", **os.environ},
            )
    print(f"| | {' | '.join(SIDES)} |")
    print("|---" * (len(SIDES) + 1) + "|")
    for title, job in JOBS.items():
        found = [functions(side).get(job) for side in SIDES.values()]
        cells = [str(count(x)) if x else "not possible" for x in found]
        print(f"| {title} | {' | '.join(cells)} |")


if __name__ == "__main__":
    if sys.argv[1:]:
        run(*sys.argv[1:])
    else:
        main()
