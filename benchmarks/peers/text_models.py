"""Models from texts to answers, for benchmarks/prediction.py.

The backends are text models of bert_tf, and sentence-transformers or a pipeline
of transformers (pipelines.txt). A request has the "batches", lists of texts or
of pairs of question and context. With a second argument, a request, the program
loads the model, answers and ends.
"""

import json
import pathlib
import re
import sys
import time

import side

# Kind -> the text model, the pipeline, and arguments of its calls.
KINDS = {
    "embedding": ("TextEmbedder", None, {}),
    "classification": (
        "TextClassifier",
        "text-classification",
        {"top_k": None, "truncation": True},
    ),
    "question_answering": (
        "QuestionAnswerer",
        "question-answering",
        {"max_answer_len": 30},
    ),
    "tagging": (
        "TokenTagger",
        "token-classification",
        {"aggregation_strategy": "first", "ignore_labels": []},
    ),
}


def bert_tf(setup):
    """Returns a function from texts to answers, and one that shortens those."""
    import bert_tf

    name, _, _ = KINDS[setup["kind"]]
    model = getattr(bert_tf, name).from_pretrained(
        setup["model"],
        max_seq_length=setup["max_seq_length"],
        **setup["options"],
    )

    def answer(texts):
        if setup["kind"] == "question_answering":
            texts = [tuple(text) for text in texts]
        return model.predict(texts, batch_size=setup["batch_size"], verbose=0)

    forms = {
        "embedding": lambda vector: vector.tolist(),
        "classification": lambda answer: [*answer["probabilities"].values()],
        "question_answering": lambda answer: answer["answer"],
        "tagging": lambda answer: answer["tags"],
    }
    return answer, forms[setup["kind"]]


def sentence_transformers(setup):
    """The same for sentence embeddings."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(setup["model"])
    model.max_seq_length = setup["max_seq_length"]

    def answer(texts):
        return model.encode(
            texts, batch_size=setup["batch_size"], show_progress_bar=False
        )

    return answer, lambda vector: vector.tolist()


def transformers(setup):
    """The same for all other kinds."""
    from transformers import pipeline

    _, task, arguments = KINDS[setup["kind"]]
    length = setup["max_seq_length"]
    if setup["kind"] == "classification":
        arguments = {**arguments, "max_length": length}
    elif setup["kind"] == "question_answering":
        stride = setup["options"]["doc_stride"]
        # Its stride is the overlap of two windows.
        arguments = {
            **arguments,
            "max_seq_len": length,
            "doc_stride": length - stride,
        }
    model = pipeline(task, setup["model"], device="cpu")

    def answer(texts):
        given = {"inputs": texts}
        if setup["kind"] == "question_answering":
            questions, contexts = zip(*texts, strict=True)
            given = {"question": [*questions], "context": [*contexts]}
        answers = model(**given, batch_size=setup["batch_size"], **arguments)
        return answers if len(texts) > 1 or "inputs" in given else [answers]

    forms = {
        "classification": lambda answer: [
            row["score"] for row in sorted(answer, key=lambda row: row["label"])
        ],
        "question_answering": lambda answer: answer["answer"],
        "tagging": lambda answer: [
            group["entity_group"]
            for group in answer
            for _ in group["word"].split()
        ],
    }
    return answer, forms[setup["kind"]]


# Backend -> makes the functions, packages.
BACKENDS = {
    "bert_tf": (bert_tf, ("tensorflow", "keras")),
    "sentence_transformers": (
        sentence_transformers,
        ("torch", "transformers", "sentence-transformers"),
    ),
    "transformers": (transformers, ("torch", "transformers")),
}


def peak_bytes():
    """Returns the largest resident memory of this process since it began.

    `resource.getrusage` would include the memory of the program that forked it.
    """
    status = pathlib.Path("/proc/self/status").read_text()
    return 1024.0 * int(re.search(r"VmHWM:\s*(\d+) kB", status)[1])


def start(setup):
    make, _ = BACKENDS[setup["backend"]]
    answer, form = make(setup)

    def reply(request):
        seconds, answers = [], []
        cpu_start = time.process_time()
        for texts in request["batches"]:
            begin = time.perf_counter()
            answers.extend(answer(texts))
            seconds.append(time.perf_counter() - begin)
        found = {
            "times": 1,
            "seconds": sum(seconds),
            "cpu_seconds": time.process_time() - cpu_start,
            "median_seconds": sorted(seconds)[len(seconds) // 2],
            "peak_bytes": peak_bytes(),
        }
        if request["with_answers"]:
            found["answers"] = [form(each) for each in answers]
        return found

    return reply


if __name__ == "__main__":
    setup = json.loads(sys.argv[1])
    if sys.argv[2:]:
        start(setup)(json.loads(sys.argv[2]))
    else:
        side.serve(start, BACKENDS[setup["backend"]][1])
