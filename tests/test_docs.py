"""The README and the pages in docs/: commands, flags, links and code work."""

import ast
import inspect
import json
import os
import re
import subprocess
import sys
import unicodedata

import doc_pages
import in_process
import paper_programs
import pytest
import sentence_files
import squad_files
from checkout import ROOT

import bert_tf
from bert_tf.base import options
from bert_tf.jobs import JOBS

PAGES = pytest.mark.parametrize("page", doc_pages.PAGES, ids=doc_pages.name_of)

# Flags of the original, Beam, Spark, TensorFlow Serving and Triton.
NOT_OURS = {
    *("bert_hub_module_handle", "do_lower"),
    *("extra_package", "sdk_container_image", "host"),
    *("batching_parameters_file", "enable_batching"),
    *("tensorflow_inter_op_parallelism", "tensorflow_intra_op_parallelism"),
    *("backend_directory", "model_repository"),
    *("grpc_address", "http_address", "metrics_address"),
}


def job_of(name):
    with paper_programs.importable():
        return in_process.job_of(name)


@PAGES
def test_commands_have_valid_flags(page):
    """They exist and have valid values; no required one is missing.

    Targets of make and extras of pip exist too.
    """
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    commands = [c for b in doc_pages.blocks(page, "sh") for c in b.commands()]
    for command in commands:
        if script := doc_pages.script_of(command):
            job = job_of(script.name)
            in_process.parse(job, script.words)
            required = {*options.required(in_process.config_type_of(job))}
            given = {w.lstrip("-").partition("=")[0] for w in script.words}
            assert required <= given or not script.is_whole, command
        if made := re.match(r"make (?:-C \S+ )?([a-z0-9-]+)", command):
            assert f"\n{made[1]}:" in makefile, command
        for extras in re.findall(r"(?:bert_tf|\.)\[([\w,-]+)\]", command):
            for extra in extras.split(","):
                assert f"\n{extra} = [" in project, command


@pytest.fixture(scope="module")
def every_flag():
    known = {"help"}
    for path in [*ROOT.glob("*.py"), *paper_programs.PAPER.glob("*.py")]:
        if "__main__" in path.read_text(encoding="utf-8"):
            config_type = in_process.config_type_of(job_of(path.stem))
            known |= options.declared(config_type).keys()
    return known


@PAGES
def test_flags_in_sentences_exist(page, every_flag):
    text = page.read_text(encoding="utf-8")
    known = every_flag | {f"no{name}" for name in every_flag} | NOT_OURS
    assert {*re.findall(r"(?<!`)`--([a-z]\w*)", text)} <= known


@PAGES
def test_names_in_sentences_exist(page):
    """`BertClassifier(dropout=)` names a class and one of its arguments.

    The first cell of a table row may name classes of other libraries.
    """
    lines = page.read_text(encoding="utf-8").splitlines()
    text = "\n".join(re.sub(r"^\|[^|]*\|", "", line) for line in lines)
    for call in re.findall(r"`(Bert\w+\([^`]*\w=[^`]*)`", text):
        node = ast.parse(re.sub(r"=(?=[,)])", "=None", call)).body[0].value
        while isinstance(node.func, ast.Call):
            node = node.func
        if not isinstance(node.func, ast.Name):
            continue  # a method
        made = getattr(bert_tf, node.func.id)
        known = {*inspect.signature(made).parameters, "dtype"}
        assert {keyword.arg for keyword in node.keywords} <= known, call


@PAGES
def test_links_lead_somewhere(page):
    text = doc_pages.prose(page)
    for path, anchor in re.findall(r"\]\(([^:)#]*)(?:#([^)]+))?\)", text):
        target = page.parent / path if path else page
        assert target.exists(), path
        if anchor:
            titles = re.findall(r"(?m)^#+ (.+)$", doc_pages.prose(target))
            # As GitHub makes anchors.
            plain = {re.sub(r"[^\w\- ]", "", title.lower()) for title in titles}
            known = {title.replace(" ", "-") for title in plain}
            assert anchor in known, f"{path}#{anchor}"


@pytest.mark.parametrize(
    "name",
    [
        "korean",
        "migration",
        pytest.param("README", marks=pytest.mark.slow),
        pytest.param("composing", marks=pytest.mark.slow),
        pytest.param("serving", marks=pytest.mark.slow),
        pytest.param("texts", marks=pytest.mark.slow),
    ],
)
def test_python_blocks(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    [page] = [page for page in doc_pages.PAGES if page.stem == name]
    run = [b for b in doc_pages.blocks(page, "python") if b.is_run]
    assert run
    doc_pages.run_python(run, {"__name__": name})


def message_texts():
    """Yields the strings of the code, with "\\0" for inserted values."""
    for path in [
        *ROOT.glob("*.py"),
        *(ROOT / "bert_tf").rglob("*.py"),
        *paper_programs.PAPER.glob("*.py"),
    ]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant | ast.JoinedStr):
                yield text_of(node)
            elif isinstance(node, ast.Call) and "wrong_value" in ast.dump(
                node.func
            ):
                name, requirement, _, *advice = map(text_of, node.args)
                advice = "".join(advice)
                yield f"{name} must be {requirement}; got \0. {advice}"


def text_of(node):
    """Returns the text of an expression, with "\0" for inserted values."""
    if isinstance(node, ast.JoinedStr):
        return "".join(map(text_of, node.values))
    is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return node.value if is_text else "\0"


def with_flags(text):
    """Returns a message as scripts print it; see `cli.with_flags`."""
    text = re.sub(r"`(\w+)=False`", r"--no\1", text)
    return re.sub(r"`([\w\0]+)(=[^`]*)?`", r"--\1\2", text)


def test_messages_are_still_in_the_code():
    page = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    ours, mark, _ = page.partition("<!-- From here on")
    assert mark
    quoted = re.findall(r"\*\*`(.+?)`\*\*", ours, re.DOTALL)
    assert len(quoted) > 60
    texts = [with_flags(text.replace("%%", "%")) for text in message_texts()]
    for message in map(" ".join, map(str.split, quoted)):
        parts = [part.strip(" .") for part in message.split("...")]
        assert len(max(parts, key=len)) > 15, message
        pattern = re.compile(".*".join(map(re.escape, parts)), re.DOTALL)
        assert any(map(pattern.search, texts)), message


@pytest.mark.parametrize("job", JOBS)
def test_a_job_has_a_page(job):
    pages = [*(ROOT / "docs" / "scripts").glob("*.md")]
    pages += (ROOT / "docs" / "guide").glob("*.md")
    texts = [page.read_text(encoding="utf-8") for page in pages]
    is_shown = any(re.search(rf"bert-tf {job}\b", text) for text in texts)
    assert is_shown, f"Add a page to docs/scripts that shows `bert-tf {job}`."


PLAIN, ONCE = "--jit_compile=false", "--num_train_epochs=1"
SHORTER = {
    "create_vocab": ["--vocab_size=35", "--min_frequency=1"],
    "create_pretraining_data": ["--dupe_factor=2", "--num_workers=1"],
    "run_pretraining": ["--num_train_steps=2", "--num_warmup_steps=1", PLAIN],
    "run_classifier": ["--train_batch_size=4", ONCE, "--num_seeds=1", PLAIN],
    "run_squad": ["--train_batch_size=2", ONCE, PLAIN],
}


def run_command(command):
    if script := doc_pages.script_of(command):
        words = [*script.words, *SHORTER.get(script.name, [])]
        with in_process.script(script.name) as launch:
            assert launch(words) == 0, command
        return
    # `python` is the Python that runs the tests.
    path = f"{os.path.dirname(sys.executable)}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}
    subprocess.run(["bash", "-c", command], check=True, env=environment)


@pytest.mark.slow
def test_korean_walk_through(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sentence_files.write(tmp_path / "nsmc", "nsmc")
    (tmp_path / "korquad").mkdir()
    for split in ("train", "dev"):
        path = tmp_path / "korquad" / f"KorQuAD_v1.0_{split}.json"
        squad_files.write(path, squad_files.questions(4))
    decomposed = unicodedata.normalize("NFD", "한국어\n영화\n")
    (tmp_path / "corpus.txt").write_text(decomposed, encoding="utf-8")
    for block in doc_pages.blocks(ROOT / "docs" / "guide" / "korean.md", "sh"):
        for command in block.commands():
            run_command(command)
    composed = (tmp_path / "corpus_nfc.txt").read_text(encoding="utf-8")
    assert composed == "한국어\n영화\n"
    assert "\ngood\n" in (tmp_path / "vocab.txt").read_text(encoding="utf-8")
    [card] = tmp_path.glob("nsmc_output/export/*/assets.extra/model_card.json")
    for path, *keys in (
        (tmp_path / "model/release/bert_tf.json",),
        (tmp_path / "nsmc_output/release/bert_tf.json",),
        (card, "encoding"),
        (tmp_path / "nsmc_huggingface/tokenizer_config.json",),
    ):
        facts = json.loads(path.read_text(encoding="utf-8"))
        for key in keys:
            facts = facts[key]
        assert facts["do_lower_case"] is True, path
        assert facts["strip_accents"] is False, path
    answers = (tmp_path / "korquad_output/predictions.json").read_text()
    assert len(json.loads(answers)) == 4
