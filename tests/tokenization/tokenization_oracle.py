"""A slow, step-by-step tokenizer, to compare the fast ones with.

It follows the description of google-research/bert's tokenizer and shares no
code with bert_tf. Whole words are lower-cased and decomposed by Python itself,
so its rules for neighboring characters hold by construction.
"""

import collections
import functools
import unicodedata

ALL = [chr(code_point) for code_point in range(0x110000)]
CJK = frozenset(
    character
    for first, last in (
        (0x4E00, 0x9FFF),
        (0x3400, 0x4DBF),
        (0x20000, 0x2A6DF),
        (0x2A700, 0x2B73F),
        (0x2B740, 0x2B81F),
        (0x2B820, 0x2CEAF),
        (0xF900, 0xFAFF),
        (0x2F800, 0x2FA1F),
    )
    for character in ALL[first : last + 1]
)
# Values of do_lower_case and strip_accents.
VARIANTS = ((True, None), (False, None), (True, False), (False, True))

# A text, a vocabulary without special tokens, and the tokens with their text.
EXAMPLE = "  Cafe\u0301 RÉSU\u00adME\u0301! 한 Caf\u00e9's \u2603\u2603"
EXAMPLE_VOCAB = ["cafe", "re", "##sume", "ᄒ", "##ᅡ", "##ᆫ", "!", "'", "s"]
EXAMPLE_TOKENS = [
    ("cafe", "Cafe\u0301"),
    ("re", "RÉ"),
    ("##sume", "SU\u00adME\u0301"),
    ("!", "!"),
    ("\u1112", "한"),
    ("##\u1161", "한"),
    ("##\u11ab", "한"),
    ("cafe", "Caf\u00e9"),
    ("'", "'"),
    ("s", "s"),
    ("[UNK]", "\u2603\u2603"),
]


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
def deleted():
    control = category("Cc") | category("Cf") | {"\0", "\ufffd"}
    return control - {"\t", "\n", "\r"}


@functools.cache
def punctuation():
    ascii_marks = set(map(chr, range(33, 127))) - set(
        "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    )
    return category("P") | ascii_marks


def basic_tokenize(text, do_lower_case, strip_accents=None):
    """Returns the words and punctuation characters of a text."""
    if strip_accents is None:
        strip_accents = do_lower_case
    gone, spaces, marks = deleted(), category("Zs"), punctuation()
    accents = category("Mn")
    text = "".join([c for c in text if c not in gone])
    text = "".join([" " if c in spaces or c in "\t\n\r" else c for c in text])
    text = "".join([f" {c} " if c in CJK else c for c in text])
    words = []
    for word in text.split():
        if do_lower_case:
            word = word.lower()
        if strip_accents:
            word = unicodedata.normalize("NFD", word)
            word = "".join([c for c in word if c not in accents])
        words.append("".join([f" {c} " if c in marks else c for c in word]))
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
        text += f" {c}{c} AΣ{c}A aΣ{c} {c}Σ {c}Σ{c} 中Σ{c}中"
        text += f" e\u0301{c}\u0327 \u302e{c}\U0001d165"
    return text


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
    groups = (sigma, marks, spaces + "ab中.", known)
    assigned = [c for c in ALL if unicodedata.category(c)[0] not in "C"]
    for index in range(count):
        group = (*groups, assigned)[index % (len(groups) + 1)]
        yield "".join(rng.choices(group, k=rng.randint(1, 11)))
