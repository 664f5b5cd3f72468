"""A step-by-step tokenizer, to compare the fast ones with.

It follows the description of google-research/bert's tokenizer and shares no
code with bert_tf. Whole words are lower-cased and decomposed by Python itself,
so its rules for neighboring characters hold by construction.
"""

import collections
import functools
import string
import unicodedata

ALL = [chr(code_point) for code_point in range(0x110000)]
CJK_BLOCKS = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)
CJK = frozenset(
    character
    for first, last in CJK_BLOCKS
    for character in ALL[first : last + 1]
)
# Values of do_lower_case and strip_accents.
VARIANTS = ((True, None), (False, None), (True, False), (False, True))


@functools.cache
def categories():
    """Returns the characters of each category."""
    members = collections.defaultdict(list)
    for character in ALL:
        members[unicodedata.category(character)].append(character)
    return members


@functools.cache
def category(name):
    """Returns the characters whose category starts with `name`."""
    names = [full for full in categories() if full.startswith(name)]
    return frozenset().union(*(categories()[full] for full in names))


@functools.cache
def cleaning():
    """Returns a table that deletes controls and separates ideographs."""
    deleted = category("Cc") | category("Cf") | {"\0", "\ufffd"}
    table = dict.fromkeys(deleted, "")
    table |= dict.fromkeys({*category("Zs"), *"\t\n\r"}, " ")
    return str.maketrans(table | {c: f" {c} " for c in CJK})


@functools.cache
def accents():
    return str.maketrans(dict.fromkeys(category("Mn"), ""))


@functools.cache
def punctuation():
    """Returns a table that separates punctuation."""
    marks = category("P") | set(string.punctuation)
    return str.maketrans({c: f" {c} " for c in marks})


def basic_tokenize(text, do_lower_case, strip_accents=None):
    """Returns the words and punctuation characters of a text."""
    if strip_accents is None:
        strip_accents = do_lower_case
    words = []
    for word in text.translate(cleaning()).split():
        if do_lower_case:
            word = word.lower()
        if strip_accents:
            word = unicodedata.normalize("NFD", word).translate(accents())
        words.append(word.translate(punctuation()))
    return " ".join(words).split()


def wordpiece(word, vocab, unk="[UNK]"):
    """Splits a word into the longest tokens, from left to right."""
    if len(word) > 200:
        return [unk]
    pieces, rest = [], word
    while rest:
        prefix = "##" if pieces else ""
        fitting = [
            rest[:length]
            for length in range(1, len(rest) + 1)
            if prefix + rest[:length] in vocab
        ]
        if not fitting:
            return [unk]
        pieces.append(prefix + fitting[-1])
        rest = rest[len(fitting[-1]) :]
    return pieces


def tokenize(text, vocab, do_lower_case, strip_accents=None):
    words = basic_tokenize(text, do_lower_case, strip_accents)
    return [piece for word in words for piece in wordpiece(word, vocab)]


def contexts(character, many):
    """Returns words in which the neighbors of a character may matter."""
    c = character
    text = f"{c} a{c}b{c}{c} AΣ{c} Σ{c}A"
    if many:
        text += f" {c}{c} AΣ{c}A aΣ{c} A{c}Σ.{c}a 1{c}Σ{c}1 中Σ{c}中"
        text += f" e\u0301{c}\u0327 \u302e{c}\U0001d165"
    return text


@functools.cache
def assigned():
    return [c for c in ALL if unicodedata.category(c)[0] != "C"]


def hostile_texts(rng, count):
    """Yields short texts of characters that tokenizers get wrong."""
    sigma = "ΣΣΣaAbé.'’:\u00ad\0\ufffd 中!-_ʰ\u0301·1ª\u0345İ\u200b\u2028"
    marks = "\u302e\u302f\u1b44\ua9c0\U0001d165\U0001d16d\U0001d15e\U0001d160"
    marks += "\U00016ff0\u0301\u0327\u034f\u0cbf\u00ad\0a 中\ufffdéᅡ한"
    spaces = (
        "\t\n\r\x0b\x0c\x1c\x1f\x85\xa0\u2003\u2028\u2029\u202f\u3000\u200b"
    )
    known = (
        "[MASK] ## [unused1] un##want éèÉ ß ﬁ … ½ ≠ ≮ \u037e ＡＢ ǅ ϓ ̈ ΐ ẞ 🤗"
    )
    groups = (sigma, marks, spaces + "ab中.", known, assigned())
    for index in range(count):
        group = groups[index % len(groups)]
        yield "".join(rng.choices(group, k=rng.randint(1, 11)))
