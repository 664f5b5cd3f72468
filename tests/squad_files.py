"""Small files in SQuAD format, whose questions ask for a word of the text.

Not a test. Some contexts take several windows of the models of the tests.
"""

import json
import random

from bert_tf.kinds.spans.squad_files import Answer, Question

WORDS = [f"{a}{b}" for a in "bdgkmst" for b in "aeou"]
VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "where", "?", *WORDS]


def questions(count, seed=0, impossible=0):
    """Questions about contexts of 5 to 27 words; every n-th is impossible."""
    generator = random.Random(seed)
    made = []
    for number in range(count):
        words = generator.sample(WORDS, generator.randint(5, 27))
        context = " ".join(words)
        has_answer = not impossible or number % impossible
        word = generator.choice(
            words if has_answer else sorted(set(WORDS) - set(words))
        )
        answers = (Answer(word, context.index(word)),) if has_answer else ()
        made.append(
            Question(
                id=f"q{number}",
                question=f"Where {word}?",
                context=context,
                answers=answers,
                is_impossible=not has_answer,
                where=f"question {number}",
            )
        )
    return made


def write(path, asked, version="1.1"):
    """Writes each question in its own paragraph; returns the path."""
    paragraphs = [
        {
            "context": question.context,
            "qas": [
                {
                    "id": question.id,
                    "question": question.question,
                    "answers": [
                        {"text": a.text, "answer_start": a.start}
                        for a in question.answers
                    ],
                    "is_impossible": question.is_impossible,
                }
            ],
        }
        for question in asked
    ]
    article = {"title": "words", "paragraphs": paragraphs}
    content = {"version": version, "data": [article]}
    path.write_text(json.dumps(content), encoding="utf-8")
    return path
