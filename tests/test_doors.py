"""A script and `fit` train to the same weights."""

from typing import NamedTuple

import conll_files
import fine_tuning_runs
import keras
import numpy as np
import pytest
import sentence_files
import squad_files

import bert_tf
from bert_tf.checkpoints.pretrained import open_pretrained
from bert_tf.config import BertConfig
from bert_tf.kinds.tags.conll_files import read_conll

pytestmark = pytest.mark.usefixtures("eagerly")
LENGTH = 50
TRAINING = {"batch_size": 4, "seed": 7}
SIZES = {
    **fine_tuning_runs.CONFIG,
    **fine_tuning_runs.WITHOUT_DROPOUT,
    "max_position_embeddings": LENGTH,
}


class Doors(NamedTuple):
    """One training, as the arguments of a script and of `fit`."""

    script: str
    flags: dict
    model: keras.Model  # To start from.
    x: list
    y: list | None
    options: dict | None = None  # Of `fit`.


def text_model(kind, head, words=sentence_files.VOCAB, logits=None, **options):
    """Returns a text model with random weights."""
    keras.utils.set_random_seed(3)
    config = BertConfig.from_dict({**SIZES, "vocab_size": len(words)})
    arguments = {"num_labels": logits, "dropout": 0.0} if logits else {}
    model = head(config, **arguments)
    model.build()
    tokenizer = bert_tf.FullTokenizer(list(words))
    return kind(model, tokenizer, max_seq_length=LENGTH, **options)


def sentences(folder, task):
    """Returns the flags of a task of sentences, its texts and labels."""
    labels, _ = sentence_files.LAYOUTS[task]
    sentence_files.write(folder, task)
    examples = sentence_files.examples("train.tsv", labels, 12)
    _, y, x, _ = zip(*examples, strict=True)
    return {"task_name": "custom", "data_dir": folder}, [*x], [*y]


def classifier(logits, **options):
    return text_model(
        *(bert_tf.TextClassifier, bert_tf.BertClassifier),
        logits=logits,
        **options,
    )


def classes(folder):
    flags, x, y = sentences(folder, "tsv")
    model = classifier(3, labels=["no", "some", "yes"])
    return Doors("run_classifier", flags, model, x, y)


def weighted_classes(folder):
    made = classes(folder)
    flags = {**made.flags, "class_weights": "2,1,0.5"}
    options = {"class_weight": {"no": 2, "yes": 0.5}}
    return made._replace(flags=flags, options=options)


def several_labels(folder):
    flags, x, y = sentences(folder, "multi_label")
    y = [[name for name in row.split(",") if name] for row in y]
    options = {"labels": ["rude", "toxic"], "problem": "multi_label"}
    flags["problem"] = "multi_label"
    return Doors("run_classifier", flags, classifier(2, **options), x, y)


def numbers(folder):
    flags, x, y = sentences(folder, "regression")
    flags["problem"] = "regression"
    model = classifier(1, problem="regression")
    return Doors("run_classifier", flags, model, x, [*map(float, y)])


def tags(folder):
    conll_files.write(folder)
    rows = read_conll(str(folder / "train.txt")).sentences
    model = text_model(
        *(bert_tf.TokenTagger, bert_tf.BertTokenClassifier),
        logits=len(conll_files.LABELS),
        labels=conll_files.LABELS,
    )
    flags = {"data_dir": folder}
    x, y = [row.words for row in rows], [row.tags for row in rows]
    return Doors("run_ner", flags, model, x, y)


def answers(folder):
    asked = squad_files.questions(12)
    path = squad_files.write(folder / "train.json", asked)
    flags = {"train_file": path, "doc_stride": 7, "max_query_length": 5}
    model = text_model(
        *(bert_tf.QuestionAnswerer, bert_tf.BertSpanLabeler),
        words=squad_files.VOCAB,
        doc_stride=7,
        max_query_length=5,
    )
    x = [(row.question, row.context) for row in asked]
    y = [row.context[row.answers[0].start :].split()[0] for row in asked]
    return Doors("run_squad", flags, model, x, y)


def pairs(folder, scores=(1.0, 0.25, 0.5)):
    flags, x, _ = sentences(folder, "tsv")
    x = [*zip(x, x[1:] + x[:1], strict=True)]
    y = [scores[n % 3] for n in range(12)] if scores else None
    lines = ["text_a\ttext_b\tscore"]
    lines += [f"{a}\t{b}\t{n}" for (a, b), n in zip(x, y or x, strict=True)]
    (folder / "train.tsv").write_text("".join(f"{row}\n" for row in lines))
    flags |= {"label_column": "score", "max_score": 1} if scores else {}
    model = text_model(bert_tf.TextEmbedder, bert_tf.BertModel)
    return Doors("run_embeddings", flags, model, x, y)


def with_a_teacher(doors, teacher):
    weights = doors.model.get_weights()
    generator = np.random.default_rng(5)
    doors.model.set_weights(
        [generator.normal(size=w.shape, scale=0.1) for w in weights]
    )
    doors.model.save_pretrained(teacher)
    doors.model.set_weights(weights)
    options = {"teacher": teacher, "temperature": 3.0}
    return doors._replace(flags={**doors.flags, **options}, options=options)


def long_texts(folder):
    """Returns windows of texts, a third of which have no label."""
    model = classifier(3, labels=["no", "some", "yes"], doc_stride=11)
    _, x, y = sentences(folder, "tsv")
    x = [" ".join([text] * (1 + n % 7)) for n, text in enumerate(x)]
    lines = [f"{text}\t{name}\n" for text, name in zip(x, y, strict=True)]
    (folder / "train.tsv").write_text("text\tlabel\n" + "".join(lines[:8]))
    (folder / "texts.tsv").write_text("text\n" + "\n".join(x[8:]) + "\n")
    flags = {"task_name": "custom", "data_dir": folder, "doc_stride": 11}
    flags |= {"unlabeled_file": folder / "texts.tsv"}
    return Doors("run_classifier", flags, model, x, [*y[:8], *4 * [None]])


def pairs_without_scores(folder):
    return pairs(folder, scores=())


SLOW = [
    *((numbers, False), (weighted_classes, False), (several_labels, False)),
    *((pairs_without_scores, False), (long_texts, True)),
    *((tags, True), (answers, True)),
]


@pytest.mark.parametrize(
    ("kind", "has_teacher"),
    [
        *((pairs, False), (tags, False), (answers, False), (classes, True)),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW),
        pytest.param(
            *(classes, False), marks=[pytest.mark.graph, pytest.mark.slow]
        ),
    ],
)
def test_a_script_and_fit_train_to_the_same_weights(
    kind, has_teacher, tmp_path
):
    doors = kind(tmp_path)
    if has_teacher:
        doors = with_a_teacher(doors, tmp_path / "teacher")
    start = tmp_path / "start"
    doors.model.save_pretrained(start)
    # The order of a second epoch does not depend on the kind.
    training = TRAINING | {"epochs": 2 if kind is classes else 1}
    fine_tuning_runs.run(
        *(doors.script, tmp_path / "output"),
        init_checkpoint=start,
        max_seq_length=LENGTH,
        train_batch_size=training["batch_size"],
        num_train_epochs=training["epochs"],
        random_seed=training["seed"],
        **doors.flags,
    )
    model = type(doors.model).from_pretrained(start)
    model.compile(learning_rate=fine_tuning_runs.FLAGS["learning_rate"])
    model.fit(doors.x, doors.y, verbose=0, **training, **(doors.options or {}))
    model.save_pretrained(tmp_path / "fit")
    start, theirs, ours = (
        open_pretrained(tmp_path / name).weights
        for name in ("start", "output/release", "fit")
    )
    # Heads of tokens do not use the pooler, which checkpoints may have.
    unused = {*start.shapes} ^ {*theirs.shapes} | {*start.shapes} ^ {
        *ours.shapes
    }
    assert not [name for name in unused if "pooler" not in name]
    for name in {*start.shapes} - unused:
        # Compared with how far the weights have moved.
        change = np.abs(theirs[name] - start[name]).max()
        np.testing.assert_allclose(
            *(ours[name], theirs[name]),
            rtol=0,
            # Gradients of 0 are noise, which Adam makes larger.
            atol=1e-3 * max(change, 1),
            err_msg=name,
        )
