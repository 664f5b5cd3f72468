"""The rules of CONTRIBUTING.md: imports, TensorFlow-free modules, lengths."""

import ast
import fnmatch
import functools
import graphlib
import io
import pathlib
import re
import tokenize
import tomllib
from collections.abc import Callable, Iterable, Iterator

import pytest
from checkout import ROOT, python

LIBRARY = sorted((ROOT / "bert_tf").rglob("*.py"))
SCRIPTS = sorted(ROOT.glob("*.py"))
PROGRAMS = sorted(
    path
    for folder in ("benchmarks", "examples")
    for path in (ROOT / folder).rglob("*.py")
)
TESTS = sorted((ROOT / "tests").rglob("*.py"))
OURS = [*LIBRARY, *SCRIPTS, *PROGRAMS, *TESTS]

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
    "lines of tests": 36_000,
    "lines of code of benchmarks and examples": 8_140,
}


@functools.cache
def rooms() -> list[str]:
    """Returns the rooms of CONTRIBUTING.md: each may import those before it."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = text.partition("\n| room |")[2].partition("\n\n")[0]
    return re.findall(r"^\| `(\w+)/?` \| ", table, re.M)


@functools.cache
def tree_of(path: pathlib.Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def name_of(path: pathlib.Path) -> str:
    """bert_tf/corpus/masking.py -> bert_tf.corpus.masking."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(name: str) -> str:
    """bert_tf.corpus.masking -> corpus."""
    return [*name.split("."), ""][1]


def imports_in(tree: ast.AST, lazily: bool = True) -> Iterator[tuple[str, int]]:
    """Yields the dotted names that a tree imports, and their lines.

    `from a.b import c` gives a.b.c, since c may be a module. If not `lazily`,
    those in functions and in `if TYPE_CHECKING` are left out.
    """
    if isinstance(tree, ast.FunctionDef) and not lazily:
        return
    if isinstance(tree, ast.Import):
        yield from ((alias.name, tree.lineno) for alias in tree.names)
    elif isinstance(tree, ast.ImportFrom):
        prefix = "." * tree.level + (tree.module or "")
        for alias in tree.names:
            yield f"{prefix}.{alias.name}", tree.lineno
    elif not isinstance(tree, ast.If) or lazily:
        for node in ast.iter_child_nodes(tree):
            yield from imports_in(node, lazily)


def is_forbidden(path: pathlib.Path, name: str, lazily: bool = False) -> bool:
    """Returns whether a module imports a room below its own, or a kind."""
    if name.split(".")[0] not in ("", "bert_tf"):
        return False
    if (name_of(path), name) == (USES_PUBLIC_NAMES, "bert_tf"):
        return False
    room, other = room_of(name_of(path)), room_of(name)
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
    lazily: bool = True,
) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: imports {name}"
        for path in paths
        for name, line in imports_in(tree_of(path), lazily)
        if is_wrong(name)
    ]
    assert not found, "\n".join([*found, "See the rules in CONTRIBUTING.md."])


def test_rooms_import_rooms_above_them():
    """Also inside functions, with the exceptions of `DOWNWARDS`."""
    assert {*rooms()} == {*map(room_of, map(name_of, LIBRARY))} - {
        *("", "__main__")
    }
    for path in LIBRARY:
        if name_of(path) not in ("bert_tf", "bert_tf.__main__"):
            for lazily in (False, True):
                wrong = functools.partial(is_forbidden, path, lazily=lazily)
                assert_no_imports([path], wrong, lazily)


def test_no_modules_import_each_other_in_a_circle():
    """Imports inside functions and of `if TYPE_CHECKING` count too."""
    imports = {}
    for path in LIBRARY:
        names = {name for name, _ in imports_in(tree_of(path))}
        imports[name_of(path)] = names | {n.rpartition(".")[0] for n in names}
    # They import names lazily.
    del imports["bert_tf"], imports["bert_tf.jobs"]
    # Or raises CycleError.
    graphlib.TopologicalSorter(
        {name: names & imports.keys() for name, names in imports.items()}
    ).prepare()


def test_the_library_imports_no_scripts_or_tests():
    outside = {path.stem for path in SCRIPTS} | {"tests", "benchmarks"}
    assert_no_imports(LIBRARY, lambda name: name.split(".")[0] in outside)


def test_only_the_command_line_imports_absl_flags():
    paths = [path for path in LIBRARY if name_of(path) != "bert_tf.cli"]
    assert_no_imports(
        paths, lambda n: n == "absl" or n.startswith(("absl.flags", "absl.app"))
    )


def test_the_model_does_not_import_tensorflow():
    """It also runs on JAX and PyTorch."""
    paths = (ROOT / "bert_tf" / "modeling").glob("*.py")
    ours = [p for p in paths if p.stem not in ("kernels", "optimization")]
    assert len(ours) > 5
    assert_no_imports(ours, lambda n: n.startswith(("tensorflow", "tf_keras")))


# The calls that make messages.
SAYS = {"InputError", "in_file", "missing", "warning", "wrong_value"}
# A word that is a flag, or the beginning of one: f"--{name}".
FLAG = re.compile(r"(?<!-)--([a-z]|$)")
# The programs whose whole command lines may be part of a message.
COMMAND = re.compile(r"(\.py|pip install|docker run)( --\S+)+")


def test_messages_name_arguments_and_not_flags():
    """In backquotes; see `bert_tf.errors`. Options of Beam and Spark remain."""
    found = [
        f"{path}:{node.lineno}: {node.value}"
        for path in LIBRARY
        if path.stem not in ("beam", "cli", "spark")
        for call in ast.walk(tree_of(path))
        if isinstance(call, ast.Call)
        and ast.unparse(call.func).split(".")[-1] in SAYS
        for node in ast.walk(call)
        if isinstance(node, ast.Constant)
        and FLAG.search(COMMAND.sub("", str(node.value)))
    ]
    assert not found, "\n".join(found)


IMPORT_ALL = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
    heavy = {"tensorflow", "keras", "tensorflow_text"} & sys.modules.keys()
    if heavy:
        sys.exit(f"{name} imports {sorted(heavy)}: see mypy's list of modules")
"""


def test_modules_that_mypy_checks_do_not_import_tensorflow():
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    overrides = tomllib.loads(text)["tool"]["mypy"]["overrides"]
    [others] = [o["module"] for o in overrides if o.get("ignore_errors")]
    names = {name_of(path) for path in LIBRARY}
    for pattern in others:
        found = {*fnmatch.filter(names, pattern)}
        assert found, f"pyproject.toml: {pattern}"
        names -= found
    assert {"bert_tf.data.records", "bert_tf.kinds.tags.options"} <= names
    done = python("-c", IMPORT_ALL, *sorted(names))
    assert done.returncode == 0, done.stderr


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
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(tree_of(path)):
        if isinstance(node, kinds) and ast.get_docstring(node, clean=False):
            text = node.body[0]
            kept.difference_update(range(text.lineno, text.end_lineno + 1))
    return kept


def lines_in(paths: Iterable[pathlib.Path]) -> int:
    return sum(path.read_bytes().count(b"\n") for path in paths)


def code_lines_in(paths: Iterable[pathlib.Path]) -> int:
    return sum(len(code_lines(path)) for path in paths)


def test_modules_stay_short():
    paths = [*LIBRARY, *SCRIPTS, *PROGRAMS]
    assert not [path for path in paths if lines_in([path]) > MAX_MODULE_LINES]


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
            if isinstance(node, ast.FunctionDef):
                lines = range(node.lineno, node.end_lineno + 1)
                # The lines of code take longer to count.
                if len(lines) <= MAX_FUNCTION_LINES:
                    continue
                count = len(code_lines(path).intersection(lines))
                if count > MAX_FUNCTION_LINES:
                    long.append(f"{path}: {node.name} has {count} lines")
    assert not long, "\n".join(long)


# Their libraries raise plain Exceptions.
CATCHES_EVERYTHING = ("released.py", "huggingface_tokenizer.py")


def test_no_handler_catches_everything():
    """Unless it raises the exception again."""
    broad = [
        f"{path}:{node.lineno}"
        for path in OURS
        if path.name not in CATCHES_EVERYTHING
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.ExceptHandler)
        and (
            node.type is None
            or re.search(r"\b(Base)?Exception\b", ast.unparse(node.type))
        )
        and ast.unparse(node.body[-1]) != "raise"
    ]
    assert not broad


def test_every_room_has_its_tests():
    folders = {path.parent.name for path in LIBRARY}
    kinds = {path.parent.name for path in LIBRARY if "kinds" in path.parts}
    tested = {path.parent.name for path in TESTS if path.stem[:5] == "test_"}
    assert folders - {"bert_tf", "options", *kinds} | {"kinds"} <= tested


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
    """A new one needs a reason here."""
    import keras

    bases = [keras.Model, keras.Layer, keras.Optimizer, keras.Metric]
    bases += [keras.callbacks.Callback, keras.utils.PyDataset]
    known = {name for base in bases for name in dir(base)} | {*PRIVATE}
    private = {n for n in known if re.match("_[^_]", n)} | {"__internal__"}
    found = set()
    for path in LIBRARY:
        for node in ast.walk(tree_of(path)):
            names = {getattr(node, "attr", ""), getattr(node, "name", "")}
            found |= private & names
        for name, _ in imports_in(tree_of(path)):
            assert not re.match(r"tensorflow\.python|keras\.src", name), path
    assert found == {*PRIVATE}
