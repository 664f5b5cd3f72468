"""The rules of CONTRIBUTING.md: imports, TensorFlow-free modules, lengths."""

import ast
import fnmatch
import functools
import graphlib
import io
import pathlib
import re
import subprocess
import sys
import tokenize
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping

import pytest
from checkout import ROOT

LIBRARY = sorted((ROOT / "bert_tf").rglob("*.py"))
SCRIPTS = sorted(ROOT.glob("*.py"))
PROGRAMS = sorted(
    path
    for folder in ("benchmarks", "examples")
    for path in (ROOT / folder).rglob("*.py")
)
TESTS = sorted((ROOT / "tests").rglob("*.py"))
OURS = [*LIBRARY, *SCRIPTS, *PROGRAMS, *TESTS]

TENSORFLOW = {"tensorflow", "tensorflow_text", "keras", "tf_keras"}
# They import TensorFlow inside a function, or for type annotations only: for
# "scheme://" paths, for a format, an error or an object that needs it, or, in
# the package itself, when a name is first used.
IMPORTS_IT_LAZILY = {
    "bert_tf",
    "bert_tf.base.files",
    "bert_tf.errors",
    "bert_tf.start_tensorflow",
    "bert_tf.data.records",
    "bert_tf.checkpoints.released",
    "bert_tf.jobs.output_folder",
    "bert_tf.jobs.settings",
    "bert_tf.kinds.tags.conll_files",
    "bert_tf.tokenization.wordpiece",
    "bert_tf.training.settings",
}

# The model, which also runs on JAX and PyTorch.
KERAS_ONLY = sorted(
    path
    for path in (ROOT / "bert_tf" / "modeling").glob("*.py")
    if path.stem not in ("kernels", "optimization")
)
# It makes the models of Keras files by the public names of their classes.
USES_PUBLIC_NAMES = "bert_tf.checkpoints.keras_files"
# Imports inside functions of rooms below: models and tokenizers open
# checkpoints.
DOWNWARDS = {("modeling", "checkpoints"), ("tokenization", "checkpoints")}

MAX_MODULE_LINES = 700
MAX_FUNCTION_LINES = 60
# The sizes today. Lower a number when a change makes it smaller.
MOST = {
    "modules": 120,
    "modules at the root": 8,
    "lines of code": 24_190,
    "lines": 37_960,
    "lines of tests": 42_570,
    "lines of code of benchmarks and examples": 8_140,
}


@functools.cache
def rooms() -> list[str]:
    """Returns the rooms of CONTRIBUTING.md: each may import those before it."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = text.partition("\n| room |")[2].partition("\n\n")[0]
    return re.findall(r"^\| `(\w+)/?` \| ", table, re.M)


@functools.cache
def with_tensorflow() -> tuple[str, ...]:
    """Returns the modules that need TensorFlow, whose types mypy ignores.

    All other modules can be imported without TensorFlow.
    """
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    overrides = tomllib.loads(text)["tool"]["mypy"]["overrides"]
    [lenient] = [o["module"] for o in overrides if o.get("ignore_errors")]
    return tuple(lenient)


@functools.cache
def tree_of(path: pathlib.Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def name_of(path: pathlib.Path) -> str:
    """bert_tf/corpus/masking.py -> bert_tf.corpus.masking."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def part_of(name: str) -> str:
    """bert_tf.corpus.masking -> corpus."""
    return [*name.split("."), ""][1]


def belongs_to(name: str, modules: Iterable[str]) -> bool:
    """Returns whether a name is in one of the modules, "a.*.c" among them."""
    return any(fnmatch.fnmatch(f"{name}.", f"{m}.*") for m in modules)


def imports_in(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yields the dotted names that a tree imports, and their lines.

    `from a.b import c` gives a.b.c, since c may be a module.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            prefix = "." * node.level + (node.module or "")
            for alias in node.names:
                yield f"{prefix}.{alias.name}", node.lineno


def imports_when_loaded(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yields the imports outside of functions and of `if TYPE_CHECKING`."""
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            pending.extend(node.orelse)
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from imports_in(node)
        pending.extend(ast.iter_child_nodes(node))


def is_forbidden(path: pathlib.Path, name: str, lazily: bool = False) -> bool:
    """Returns whether a module imports a room below its own, or a kind."""
    if name.split(".")[0] not in ("", "bert_tf"):
        return False
    if (name_of(path), name) == (USES_PUBLIC_NAMES, "bert_tf"):
        return False
    room, other = part_of(name_of(path)), part_of(name)
    if lazily and (room, other) in DOWNWARDS:
        return False
    if other not in rooms() or {room, other} == {"training", "tasks"}:
        return True
    if room == other == "kinds":
        return name_of(path).split(".")[:3] != name.split(".")[:3]
    return rooms().index(other) > rooms().index(room)


def assert_no_imports(
    paths: Iterable[pathlib.Path],
    is_wrong: Callable[[str], bool],
    imports: Callable = imports_in,
) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: imports {name}"
        for path in paths
        for name, line in imports(tree_of(path))
        if is_wrong(name)
    ]
    rule = "See the rules in CONTRIBUTING.md and mypy's list in pyproject.toml."
    assert not found, "\n".join([*found, rule])


def needs_tensorflow(name: str) -> bool:
    return belongs_to(name, TENSORFLOW) or belongs_to(name, with_tensorflow())


def test_rooms_import_rooms_above_them():
    """Also inside functions, with the exceptions of `DOWNWARDS`."""
    for path in LIBRARY:
        if name_of(path) not in ("bert_tf", "bert_tf.__main__"):
            wrong = functools.partial(is_forbidden, path)
            assert_no_imports([path], wrong, imports_when_loaded)
            wrong = functools.partial(is_forbidden, path, lazily=True)
            assert_no_imports([path], wrong)


def test_the_table_has_every_room():
    found = {part_of(name_of(path)) for path in LIBRARY}
    assert {*rooms()} == found - {"", "__main__"}


def imports_among(trees: Mapping[str, ast.AST]) -> dict[str, set[str]]:
    """Returns which of the modules each of them imports, lazily or not.

    `from a.b import c` imports a.b.c or a.b.
    """
    imports = {}
    for module, tree in trees.items():
        names = {name for name, _ in imports_in(tree)}
        names |= {name.rpartition(".")[0] for name in names}
        imports[module] = trees.keys() & names
    return imports


def test_no_modules_import_each_other_in_a_circle():
    """Imports inside functions and of `if TYPE_CHECKING` count too."""
    trees = {name_of(path): tree_of(path) for path in LIBRARY}
    # They import names lazily.
    del trees["bert_tf"], trees["bert_tf.jobs"]
    imports = imports_among(trees)
    graphlib.TopologicalSorter(imports).prepare()  # Or raises CycleError.


def test_the_package_imports_lazily():
    """`import bert_tf.data.records` imports bert_tf/__init__.py first."""
    assert_no_imports(
        [ROOT / "bert_tf" / "__init__.py"],
        lambda name: (
            belongs_to(name, TENSORFLOW | {"bert_tf"})
            and part_of(name) not in ("errors", "start_tensorflow", "version")
        ),
        imports_when_loaded,
    )


def test_the_library_imports_no_scripts_or_tests():
    outside = {path.stem for path in SCRIPTS} | {"tests", "benchmarks"}
    assert_no_imports(LIBRARY, lambda name: belongs_to(name, outside))


def test_only_the_command_line_imports_absl_flags():
    flags = ("absl.flags", "absl.app")
    paths = [path for path in LIBRARY if name_of(path) != "bert_tf.cli"]
    assert_no_imports(
        paths, lambda name: name == "absl" or belongs_to(name, flags)
    )


# A word that is a flag, or the beginning of one: f"--{name}".
FLAG = re.compile(r"(?<!-)--([a-z]|$)")
# The programs whose whole command lines may be part of a message.
COMMAND = re.compile(r"(\.py|pip install|docker run)( --\S+)+")
# Modules that name flags in strings other than help texts.
NAMES_FLAGS = {
    **dict.fromkeys(["cli", "command"], "the command line"),
    "corpus.engines.beam": "options of Beam, which are words of a command line",
    "corpus.engines.spark": "options of spark-submit",
    "serving.export": "commands that start a server",
}


def texts_with_flags(tree: ast.Module) -> list[str]:
    """Returns the strings that name flags, but docstrings and help texts.

    Messages name arguments in backquotes; see `bert_tf.errors`.
    """
    helps = [
        part
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and "option" in ast.unparse(node.func)
        for part in ast.walk(node)
    ]
    of_helps = {node.id for node in helps if isinstance(node, ast.Name)}
    for node in tree.body:
        if isinstance(node, ast.Assign) and of_helps & {
            ast.unparse(target) for target in node.targets
        }:
            helps.extend(ast.walk(node))
    lines = docstring_lines(tree)
    return [
        f"{node.lineno}: {node.value}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and FLAG.search(COMMAND.sub("", node.value))
        and node.lineno not in lines
        and node not in helps
    ]


def test_only_the_command_line_names_flags():
    found = {
        name_of(path).removeprefix("bert_tf."): texts
        for path in LIBRARY
        if (texts := texts_with_flags(tree_of(path)))
    }
    assert not {n: found[n] for n in found.keys() - NAMES_FLAGS.keys()}
    assert found.keys() == NAMES_FLAGS.keys(), "Remove these exceptions"


def test_the_model_does_not_import_tensorflow():
    others = TENSORFLOW - {"keras"}
    assert len(KERAS_ONLY) > 5
    assert_no_imports(KERAS_ONLY, lambda name: belongs_to(name, others))


IMPORT_ALL = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
    heavy = {"tensorflow", "keras", "tensorflow_text"} & sys.modules.keys()
    if heavy:
        sys.exit(f"{name} imports {sorted(heavy)}")
"""


def test_other_modules_do_not_import_tensorflow():
    paths = [
        p for p in LIBRARY if not belongs_to(name_of(p), with_tensorflow())
    ]
    for path in paths:
        lazily = name_of(path) in IMPORTS_IT_LAZILY
        imports = imports_when_loaded if lazily else imports_in
        assert_no_imports([path], needs_tensorflow, imports)
    # Nor does any other package import it.
    names = [name_of(path) for path in paths]
    assert "bert_tf.data.records" in names
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL, *names],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    existing = [name_of(path) for path in LIBRARY]
    for pattern in with_tensorflow():
        assert fnmatch.filter(existing, pattern), f"pyproject.toml: {pattern}"


# Lengths, names and handlers


@functools.cache
def code_lines(path: pathlib.Path) -> set[int]:
    """Returns the lines of code, without blank lines, comments, docstrings."""
    kept: set[int] = set()
    blank = {
        *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE),
        *(tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER),
    }
    source = path.read_text(encoding="utf-8")
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in blank:
            kept.update(range(token.start[0], token.end[0] + 1))
    return kept - docstring_lines(tree_of(path))


def docstring_lines(tree: ast.Module) -> set[int]:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    lines: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, kinds) and ast.get_docstring(node, clean=False):
            text = node.body[0]
            lines.update(range(text.lineno, text.end_lineno + 1))
    return lines


def test_modules_stay_short():
    long = {
        path: count
        for path in [*LIBRARY, *SCRIPTS, *PROGRAMS]
        if (count := path.read_bytes().count(b"\n")) > MAX_MODULE_LINES
    }
    assert not long


def lines_in(paths: Iterable[pathlib.Path]) -> int:
    return sum(path.read_bytes().count(b"\n") for path in paths)


def code_lines_in(paths: Iterable[pathlib.Path]) -> int:
    return sum(len(code_lines(path)) for path in paths)


def test_sizes_only_fall():
    """A change that makes one larger must make another part smaller."""
    modules = [path for path in LIBRARY if path.stem != "__init__"]
    root = [path for path in LIBRARY if path.parent == ROOT / "bert_tf"]
    sizes = {
        "modules": len(modules),
        "modules at the root": len(root),
        "lines of code": code_lines_in(LIBRARY),
        "lines": lines_in(LIBRARY),
        "lines of tests": lines_in(TESTS),
        "lines of code of benchmarks and examples": code_lines_in(PROGRAMS),
    }
    grown = {name: n for name, n in sizes.items() if n > MOST[name]}
    assert not grown, (
        f"more than {MOST}. Make another part smaller. Only a new kind of task "
        "may raise MOST; say so in the commit"
    )


@pytest.mark.parametrize("paths", [LIBRARY, SCRIPTS + PROGRAMS, TESTS])
def test_functions_stay_short(paths):
    long = []
    for path in paths:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = range(node.lineno, node.end_lineno + 1)
                if len(lines) <= MAX_FUNCTION_LINES:
                    continue
                count = len(code_lines(path).intersection(lines))
                if count > MAX_FUNCTION_LINES:
                    long.append(f"{path}: {node.name} has {count} lines")
    assert not long, "\n".join(long)


def is_broad(handler: ast.ExceptHandler) -> bool:
    """Returns whether a handler catches everything without reraising."""
    last = handler.body[-1]
    passes_on = isinstance(last, ast.Raise) and last.exc is None
    caught = ast.walk(handler.type) if handler.type else [ast.Name("Exception")]
    names = {node.id for node in caught if isinstance(node, ast.Name)}
    return bool(names & {"Exception", "BaseException"}) and not passes_on


# Their libraries raise plain Exceptions.
CATCHES_EVERYTHING = {
    ROOT / "bert_tf" / "checkpoints" / "released.py",
    ROOT / "bert_tf" / "checkpoints" / "huggingface_tokenizer.py",
}


def test_no_handler_catches_everything():
    broad = [
        f"{path}:{node.lineno}"
        for path in OURS
        if path not in CATCHES_EVERYTHING
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.ExceptHandler) and is_broad(node)
    ]
    assert not broad


def test_no_todo_comments():
    # Split, since this file is searched too.
    marks = ["TO" + "DO", "FIX" + "ME", "X" + "XX"]
    texts = {path: path.read_text(encoding="utf-8") for path in OURS}
    assert not [p for p in OURS if any(mark in texts[p] for mark in marks)]


def test_modules_have_meaningful_names():
    vague = {"util", "utils", "helper", "helpers", "common", "misc"}
    assert not [
        path
        for path in OURS
        if vague & {path.stem, *path.parent.relative_to(ROOT).parts}
    ]


def test_every_room_has_its_tests():
    folders = {path.parent.name for path in LIBRARY}
    kinds = {path.parent.name for path in LIBRARY if "kinds" in path.parts}
    tested = {path.parent.name for path in TESTS if path.stem[:5] == "test_"}
    assert folders - {"bert_tf", "options", *kinds} | {"kinds"} <= tested


# The checks themselves can fail.


@pytest.mark.parametrize(
    ("name", "line", "forbidden"),
    [
        ("data/x.py", "from bert_tf import modeling", True),
        ("data/x.py", "import bert_tf.modeling", True),
        ("data/x.py", "from bert_tf import BertConfig", True),
        ("data/x.py", "from ..text import packing", True),
        ("data/x.py", "def f():\n    import bert_tf.modeling.heads", True),
        ("training/x.py", "from bert_tf.tasks import task", True),
        ("kinds/tags/x.py", "from bert_tf.kinds.spans import task", True),
        ("kinds/tags/x.py", "from bert_tf.kinds.tags import task", False),
        ("data/x.py", "from bert_tf.data import records", False),
        ("corpus/x.py", "from bert_tf.tokenization.packing import p", False),
        ("config.py", "from bert_tf.base import files", False),
        ("config.py", "import bert_tfx", False),
    ],
)
def test_forbidden_imports_are_found(name, line, forbidden):
    [(imported, _)] = imports_in(ast.parse(line))
    assert is_forbidden(ROOT / "bert_tf" / name, imported) == forbidden


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ('f("Pass --labels.")', 1),
        ('f(f"--{name} is 1")', 1),
        ('"""Docs: --labels."""\nf("a--b ---")', 1),
        ('f("Pass `a`. Run x.py --a=1 --b or pip install --c")', 0),
        ('H = "As --a."\nx = option("Like --labels.")\ny = option(H)', 0),
    ],
)
def test_flags_are_found(text, count):
    assert len(texts_with_flags(ast.parse(text))) == count


# Private names of Keras and TensorFlow that the library uses, and why.
PRIVATE = {
    "_flatten_layers": "a `Layer` has no public list of the layers in it",
    "_get_variable_index": "the index of a variable's slots",
    "_kernel": "Keras's `Dense` keeps the kernel there when it is quantized",
    "_maybe_symbolic_build": "replicas with batches of different sizes",
    "_symbolic_build": "variables of metrics, so that a step is traced once",
    "_untrack_variable": "an int8 kernel replaces the one of floats",
    "__internal__": "updates of variables on all devices, in a replica",
}


def test_private_names_of_keras_are_listed():
    """A new one needs a reason here; see CONTRIBUTING.md."""
    import keras

    bases = [keras.Model, keras.Layer, keras.Optimizer, keras.Metric]
    bases += [keras.callbacks.Callback, keras.utils.PyDataset]
    known = {name for base in bases for name in dir(base)} | {*PRIVATE}
    private = {name for name in known if re.match("_[^_]", name)}
    found = set()
    for path in LIBRARY:
        for node in ast.walk(tree_of(path)):
            names = {getattr(node, "attr", ""), getattr(node, "name", "")}
            found |= private & names
            is_attribute = isinstance(node, ast.Attribute)
            if is_attribute and ast.unparse(node) == "tf.__internal__":
                found.add(node.attr)
        for name, _ in imports_in(tree_of(path)):
            parts = name.split(".")
            if parts[0] in TENSORFLOW and "python" in parts:
                found.add("python")
            assert parts[:2] != ["keras", "src"], path
    assert found == {*PRIVATE}
