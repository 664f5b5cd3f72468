"""Trains sentence embeddings on STS-B with sentence-transformers.

    python -m venv /tmp/st
    /tmp/st/bin/pip install torch sentence-transformers datasets accelerate
    /tmp/st/bin/python benchmarks/peers/sentence_transformers_sts.py \\
        --data_dir=../shared/data/glue/STS-B --init_checkpoint=MODEL --seed=1

Prints one JSON object: Spearman's correlation on dev.tsv before and after the
training, times 100, and the seconds of the training. The recipe is the same as
run_embeddings.py with --adam_bias_correction.
"""

import argparse
import json
import pathlib
import tempfile

from datasets import Dataset
from scipy.stats import spearmanr
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.losses import CosineSimilarityLoss


def read(path: pathlib.Path) -> Dataset:
    """Returns the columns of a file of STS-B."""
    lines = path.read_text(encoding="utf-8").splitlines()[1:]
    rows = [line.split("\t") for line in lines]
    return Dataset.from_dict(
        {
            "text_a": [row[7] for row in rows],
            "text_b": [row[8] for row in rows],
            "score": [float(row[9]) / 5 for row in rows],
        }
    )


def spearman(model: SentenceTransformer, data: Dataset) -> float:
    first, second = (
        model.encode(data[name], normalize_embeddings=True)
        for name in ("text_a", "text_b")
    )
    cosines = (first * second).sum(axis=1)
    return 100 * float(spearmanr(data["score"], cosines).statistic)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data_dir", type=pathlib.Path, required=True)
    parser.add_argument("--init_checkpoint", required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--epochs", type=float, default=1)
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--learning_rate", type=float, default=5e-5)
    parser.add_argument("--max_seq_length", type=int, default=128)
    options = parser.parse_args()
    train, dev = (
        read(options.data_dir / f"{name}.tsv") for name in ("train", "dev")
    )
    model = SentenceTransformer(options.init_checkpoint, device="cpu")
    model.max_seq_length = options.max_seq_length
    before = spearman(model, dev)
    with tempfile.TemporaryDirectory() as folder:
        arguments = SentenceTransformerTrainingArguments(
            output_dir=folder,
            max_steps=int(len(train) / options.batch_size * options.epochs),
            per_device_train_batch_size=options.batch_size,
            learning_rate=options.learning_rate,
            warmup_steps=0.1,  # A fraction of all steps.
            weight_decay=0.01,
            seed=options.seed,
            save_strategy="no",
            report_to="none",
            use_cpu=True,
        )
        trainer = SentenceTransformerTrainer(
            model, arguments, train, loss=CosineSimilarityLoss(model)
        )
        done = trainer.train()
    found = {
        "before": before,
        "after": spearman(model, dev),
        "steps": done.global_step,
        "seconds": done.metrics["train_runtime"],
    }
    print(json.dumps({name: round(x, 2) for name, x in found.items()}))


if __name__ == "__main__":
    main()
