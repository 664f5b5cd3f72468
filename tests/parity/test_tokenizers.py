"""The tokenizers in Python and in the graph, compared with the original.

The oracle follows the description of google-research/bert step by step and
shares no code with bert_tf. Each number counts the texts for which one of these
differs from it: `tokenize`, `encode`, `tokenize_with_offsets` (tokens, ids and
the characters at the offsets) and the layer `BertTokenizer`.
"""

import functools
import itertools
import random
import re
import unicodedata

import pytest

from bert_tf.tokenization.normalization import Normalizer
from bert_tf.tokenization.wordpiece import FullTokenizer
from tests.tokenization import tokenization_oracle as oracle

pytest.importorskip("tensorflow_text")

import tensorflow as tf

from bert_tf.tokenization.graph import BertTokenizer

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
# Published vocabularies, and whether they are uncased.
VOCABULARIES = {
    "bert-base-uncased": True,
    "bert-base-cased": False,
    "bert-base-multilingual-cased": False,
    "bert-base-chinese": True,
    "kr-bert-char16424": True,
}
ALL_VOCABULARIES = pytest.mark.parametrize("name", VOCABULARIES)
SURROGATES = set(oracle.ALL[0xD800:0xE000])
BLOCK = 499
# Of groups of near-identical characters, tests use one in so many;
# `make fidelity` uses all.
SAMPLE = 13
# The casing in which all code points are compared.
UNCASED = True, None


class Tokenizers:
    """Our tokenizers and the oracle, for one vocabulary and casing."""

    def __init__(self, vocabulary, do_lower_case, strip_accents=None):
        self.casing = do_lower_case, strip_accents
        self.python = FullTokenizer(vocabulary, *self.casing)
        self.graph = tf.function(
            BertTokenizer(vocabulary, *self.casing).tokenize, autograph=False
        )
        self.normalizer = Normalizer(*self.casing)
        self.pieces = functools.lru_cache(1 << 12)(self._pieces)
        self.cuts_out = functools.lru_cache(1 << 16)(self._cuts_out)

    def _pieces(self, text):
        """Returns the original's tokens of a text."""
        return oracle.tokenize(text, self.python.vocab, *self.casing)

    def ids(self, text):
        return self.python.convert_tokens_to_ids(self.pieces(text))

    def other_ids(self, texts):
        """Yields the texts for which `encode` or the graph has other ids."""
        # UTF-8 has no surrogates, so the graph cannot have them as input.
        bare = [re.sub("[\ud800-\udfff]", "", text) for text in texts]
        in_graph = self.graph(tf.constant(bare, tf.string)).to_list()
        for text, rest, graph_ids in zip(texts, bare, in_graph, strict=True):
            ids = self.ids(text)
            bare_ids = ids if rest == text else self.ids(rest)
            if self.python.encode(text) != ids or graph_ids != bare_ids:
                yield text

    def other_tokens(self, texts):
        """Yields the texts with other tokens or with wrong offsets."""
        for text in texts:
            tokens = self.python.tokenize_with_offsets(text)
            pieces = self.pieces(text)
            cuts = {(t.text, text[t.start : t.end]) for t in tokens}
            if (
                self.python.tokenize(text) != pieces
                or [t.text for t in tokens] != pieces
                or [t.id for t in tokens] != self.ids(text)
                or not all(self.cuts_out(*cut) for cut in cuts)
            ):
                yield text

    def differing(self, texts):
        """Returns the texts that differ in either way."""
        return {*self.other_ids(texts), *self.other_tokens(texts)}

    def _cuts_out(self, piece, source):
        """Returns whether `source`, and nothing shorter, gives the token."""
        made = self._letters(source)
        if piece == "[UNK]":
            return made != ""
        bare = without_final_sigma(piece.removeprefix("##") or piece)
        # Stripped accents after a token belong to it.
        while len(source) > 1 and not self._letters(source[-1]):
            source = source[:-1]
        fewer = (source[1:], source[:-1]) if len(source) > 1 else ()
        return bare in made and not any(bare in self._letters(f) for f in fewer)

    def _letters(self, text):
        return without_final_sigma(self.normalizer(text)).replace(" ", "")


def count(differing, texts):
    """Counts short texts that differ, joined to long ones for speed."""
    total = 0
    for start in range(0, len(texts), BLOCK):
        block = texts[start : start + BLOCK]
        if any(differing([" ".join(block)])):
            # If none differs alone, the block counts as one.
            total += len([*differing(block)]) or 1
    return total


def without_final_sigma(text):
    """Removes the difference that depends on neighbors of a token."""
    return text.replace("ς", "σ")


def spelling(texts, normalizer):
    """Returns a vocabulary for all words, as [UNK] would hide differences."""
    letters = {c for text in texts for c in normalizer(text)} - SURROGATES
    letters = sorted(letters - {" "})
    return [*SPECIAL, *letters, *(f"##{c}" for c in letters)]


def words_near_the_longest(rng):
    """The limit is 200 characters, counted after normalization."""
    for letter in ("a", "é", "e\u0301", "Σ", "中", "한", "\U0001f917", "\0a"):
        for size in (66, 67, 100, 200, 201):
            yield f"{letter * size} x{letter * size}."


def final_sigmas(rng):
    """Next to skipped, cased and other characters."""
    neighbors = "aA1.,'’:·\u00ad\u0301\u0345\u200b\0\ufffdªʰ中Σς \u2028İ"
    for pair in itertools.product(neighbors, repeat=2):
        yield "AΣ{}A {}Σ Σ{}".format(pair[0], *pair)
        yield "a{0}Σ{1} a{0}{1}Σ{0}a ΑΣ{0}{1}".format(*pair)


def controls(rng):
    """All deleted characters and spaces, at each position of a word."""
    for category in ("Cc", "Cf", "Z"):
        for c in oracle.category(category):
            yield f"{c}ab{c} a{c}b {c}{c} é{c}\u0301 {c}"
    yield "\ufffd a\ufffdb \ufffd\ufffd \ufeffab"


def special_tokens(rng):
    """They are split like any other text."""
    for token in (*SPECIAL, "[unused1]", "[unused99]", "##ab", "##", "[", "[]"):
        yield token
        yield token.lower()
        yield f"a {token} b{token}c {token}{token}, ({token})"


def multilingual(rng):
    """Texts of about 2,000 characters, with words of several scripts."""
    starts = (0x41, 0xC0, 0x391, 0x410, 0x5D0, 0x621, 0x905, 0xE01, 0x10D0)
    starts += (0x1100, 0x1E00, 0x3041, 0x30A1, 0x4E00, 0xAC00, 0xFF21, 0x1F600)
    for _ in range(7):
        words = []
        for start in rng.choices(starts, k=331):
            letters = [
                start + rng.randrange(60) for _ in range(rng.randrange(1, 9))
            ]
            words.append("".join(map(chr, letters)))
        yield "".join(word + rng.choice(" \t\n.,-\u3000") for word in words)


KINDS = {
    "words of 66 to 201 characters": words_near_the_longest,
    "final sigma": final_sigmas,
    "control characters and spaces": controls,
    "literal special tokens": special_tokens,
    "long random texts of 17 scripts": multilingual,
    # Short, with characters that tokenizers get wrong.
    "hostile strings": lambda rng: oracle.hostile_texts(rng, 1_009),
}


@functools.cache
def texts_of(kind):
    return list(KINDS[kind](random.Random(41)))


@pytest.fixture(scope="module")
def spelt():
    """Tokenizers whose vocabulary spells all texts, by casing."""

    @functools.cache
    def make(*casing):
        texts = itertools.chain.from_iterable(map(texts_of, KINDS))
        return Tokenizers(spelling(texts, Normalizer(*casing)), *casing)

    return make


@pytest.fixture(scope="module")
def published(shared_data):
    """The tokenizers of a published vocabulary, by its name."""

    @functools.cache
    def make(name):
        path = shared_data / "vocab" / f"{name}-vocab.txt"
        return Tokenizers(path, VOCABULARIES[name])

    return make


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("do_lower_case", "strip_accents"),
    [
        (True, None),
        (False, None),
        pytest.param(True, False, marks=pytest.mark.slow),
        pytest.param(False, True, marks=pytest.mark.slow),
    ],
)
def test_hard_texts(spelt, fidelity, kind, do_lower_case, strip_accents):
    tokenizers = spelt(do_lower_case, strip_accents)
    fidelity(
        f"tokenization: {kind}, every casing: texts that differ",
        len(tokenizers.differing(texts_of(kind))),
        0,
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@ALL_VOCABULARIES
def test_hard_texts_in_published_vocabularies(published, fidelity, kind, name):
    fidelity(
        f"tokenization: {kind}, the five vocabularies: texts that differ",
        len(published(name).differing(texts_of(kind))),
        0,
    )


@pytest.mark.slow
@ALL_VOCABULARIES
def test_words_of_published_vocabularies(published, fidelity, name):
    tokenizers = published(name)
    rng = random.Random(43)
    words = [t.removeprefix("##") for t in tokenizers.python.inv_vocab]
    ends = ["", "", " ", "\n", "\u0301", "\u200b", ".", "Σ"]
    texts = [
        "".join(rng.choice(words) + rng.choice(ends) for _ in range(97))
        for _ in range(97)
    ]
    fidelity(
        "tokenization: random words of each of the five vocabularies: texts "
        "that differ",
        len(tokenizers.differing(texts)),
        0,
    )


@pytest.mark.slow
@ALL_VOCABULARIES
def test_books_and_articles(shared_data, published, fidelity, name):
    lines = []
    for file, step in (
        ("pretraining_text/gutenberg/pg174.txt", 29),
        ("pretraining_text/wikitext-2-raw/wiki.test.raw", 11),
        ("nsmc/mini/ratings_train.txt", 13),
    ):
        text = (shared_data / file).read_text(encoding="utf-8")
        lines += text.split("\n")[::step]
    fidelity(
        "tokenization: English and Korean lines, the five vocabularies: lines "
        "that differ",
        len(published(name).differing(lines)),
        0,
    )


PLACES = "alone, between letters and doubled"


def forms(characters):
    return [f"{c} a{c}b {c}{c}" for c in characters]


@functools.cache
def assigned():
    """Returns all characters except surrogates, private and unassigned."""
    others = ("Cn", "Co", "Cs")
    return [c for c in oracle.ALL if unicodedata.category(c) not in others]


def chunks(characters, *casing):
    """Yields tokenizers and texts of up to 65,536 characters each."""
    for start in range(0, len(characters), 1 << 16):
        some = characters[start : start + (1 << 16)]
        texts = forms(some)
        yield Tokenizers(spelling(texts, Normalizer(*casing)), *casing), texts


@pytest.fixture
def sampled(pytestconfig):
    """Samples one character in SAMPLE, or all for `make fidelity`."""
    step = 1 if pytestconfig.getoption("fidelity_rows") else SAMPLE
    return lambda characters: characters[::step]


@pytest.mark.slow
def test_every_code_point(fidelity, sampled):
    # Ideographs and unassigned characters are sampled, with the edges of the
    # blocks of ideographs.
    varied = {*assigned()} - oracle.CJK
    edges = {
        c
        for previous, c in itertools.pairwise(oracle.ALL)
        if (previous in oracle.CJK) != (c in oracle.CJK)
    }
    edges |= {chr(ord(c) - 1) for c in edges}
    others = sorted({*oracle.ALL} - varied)
    characters = sorted(varied | edges | {*sampled(others)})
    other_ids = other_tokens = 0
    for tokenizers, texts in chunks(characters, *UNCASED):
        other_ids += count(tokenizers.other_ids, texts)
        other_tokens += count(tokenizers.other_tokens, texts)
    where = f"tokenization: U+0000 to U+10FFFF {PLACES}, uncased: code points "
    fidelity(where + "with other ids", other_ids, 0)
    fidelity(
        where + "with other pieces, or offsets that cut out something else",
        other_tokens,
        0,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("do_lower_case", "strip_accents"),
    [casing for casing in oracle.VARIANTS if casing != UNCASED],
)
def test_every_assigned_character(
    fidelity, sampled, do_lower_case, strip_accents
):
    """In the other casings; test_normalization.py has all code points."""
    fidelity(
        f"tokenization: all assigned characters {PLACES}, lower-cased or not, "
        "with accents and without: characters that differ in any way",
        sum(
            count(tokenizers.differing, texts)
            for tokenizers, texts in chunks(
                sampled(assigned()), do_lower_case, strip_accents
            )
        ),
        0,
    )


@pytest.mark.slow
@ALL_VOCABULARIES
def test_every_character_in_published_vocabularies(
    published, fidelity, sampled, name
):
    texts = forms(sampled(assigned()))
    fidelity(
        f"tokenization: all assigned characters {PLACES}, the five "
        "vocabularies: characters with other ids",
        count(published(name).other_ids, texts),
        0,
    )
