"""The rules of CONTRIBUTING.md: imports, TensorFlow-free modules, lengths."""

import ast
import functools
import io
import pathlib
import subprocess
import sys
import tokenize
import tomllib
from collections.abc import Iterator

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

# Part of the library -> the parts that it may import, in addition to itself.
MAY_IMPORT = {
    "errors": set(),
    "files": set(),
    "options": set(),
    "quiet_tensorflow": set(),
    "signals": set(),
    "version": set(),
    "config": set(),
    "metrics": set(),
    "optimization": set(),
    "tokenization": set(),
    "corpus": {"data", "tokenization"},
    "data": set(),
    "kernels": set(),
    "transformer": {"config", "kernels"},
    "modeling": {"config", "transformer"},
    "heads": {"config", "transformer", "modeling"},
    "feature_tagger": {"config", "heads", "modeling", "transformer"},
    "keras_registry": set(),
    "training": {"kernels", "optimization"},
    "interop": {
        *("config", "tokenization", "modeling", "heads"),
        "training",
    },
    "pretrained": {
        *("config", "interop", "modeling", "training"),
    },
    "tasks": {
        *("config", "metrics", "tokenization", "data", "kernels", "modeling"),
        *("heads", "feature_tagger"),
    },
    "serving": {"modeling", "tasks", "tokenization"},
    "visualization": {"tokenization"},
    "jobs": {
        *("cli", "config", "corpus", "data", "feature_tagger", "heads"),
        *("interop", "modeling", "optimization", "pretrained"),
        *("quiet_tensorflow", "serving", "tasks"),
        *("tokenization", "training", "visualization"),
    },
    "cli": set(),
}
FOR_ALL = {"errors", "files", "options", "signals", "version"}

# All other modules can be imported without TensorFlow.
WITH_TENSORFLOW = (
    "bert_tf.data.buckets",
    "bert_tf.data.pipeline",
    "bert_tf.data.pretraining_data",
    "bert_tf.data.sequence_packing",
    "bert_tf.feature_tagger",
    "bert_tf.heads",
    "bert_tf.interop.conversion",
    "bert_tf.interop.google",
    "bert_tf.interop.keras_files",
    "bert_tf.jobs",
    "bert_tf.kernels",
    "bert_tf.modeling",
    "bert_tf.optimization",
    "bert_tf.pretrained",
    "bert_tf.quiet_tensorflow",
    "bert_tf.serving",
    "bert_tf.tasks",
    "bert_tf.tokenization.graph",
    "bert_tf.training.checkpoints",
    "bert_tf.training.distribution",
    "bert_tf.training.estimator",
    "bert_tf.training.hooks",
    "bert_tf.training.settings",
    "bert_tf.training.step",
    "bert_tf.training.workers",
    "bert_tf.transformer",
)
TENSORFLOW = {"tensorflow", "tensorflow_text", "keras", "tf_keras"}
# They import TensorFlow inside a function: for "scheme://" paths, for a format
# that needs it, or, in the package itself, when a name is first used.
IMPORTS_IT_LAZILY = {
    "bert_tf",
    "bert_tf.config",
    "bert_tf.files",
    "bert_tf.keras_registry",
    "bert_tf.data.records",
}

# The model, which also runs on JAX and PyTorch.
KERAS_ONLY = {
    "transformer",
    "modeling",
    "heads",
    "feature_tagger",
}

MAX_MODULE_LINES = 700
MAX_FUNCTION_LINES = 60


@functools.cache
def tree_of(path: pathlib.Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def name_of(path: pathlib.Path) -> str:
    """bert_tf/data/masking.py -> bert_tf.corpus.masking."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


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


def part_of(name: str) -> str:
    """bert_tf.corpus.masking -> corpus."""
    parts = name.split(".")
    return parts[1] if len(parts) > 1 else ""


def belongs_to(name: str, modules: tuple[str, ...]) -> bool:
    return any(name == m or name.startswith(f"{m}.") for m in modules)


def places(found: list[tuple[pathlib.Path, int, str]]) -> str:
    """Returns one line per finding."""
    return "\n".join(
        f"{path.relative_to(ROOT)}:{line}: {what}" for path, line, what in found
    )


def forbidden_imports(path: pathlib.Path) -> list[tuple[str, int]]:
    """Returns the imports of a module that the table does not allow."""
    part = part_of(name_of(path))
    allowed = MAY_IMPORT[part] | FOR_ALL | {part}
    return [
        (name, line)
        for name, line in imports_in(tree_of(path))
        if name.startswith(".")
        or (name.split(".")[0] == "bert_tf" and part_of(name) not in allowed)
    ]


def code_lines(path: pathlib.Path) -> set[int]:
    """Returns the lines of code, without blank lines, comments, docstrings."""
    kept: set[int] = set()
    blank = {
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
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


def functions_in(tree: ast.Module) -> Iterator[ast.FunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def test_every_part_of_the_library_is_in_the_table():
    parts = {part_of(name_of(path)) for path in LIBRARY} - {""}
    assert parts <= MAY_IMPORT.keys()


def test_imports_follow_the_table():
    found = [
        (path, line, f"imports {name}")
        for path in LIBRARY
        if part_of(name_of(path))
        for name, line in forbidden_imports(path)
    ]
    assert not found, places(found)


def test_the_package_imports_lazily():
    """`import bert_tf.data.records` imports bert_tf/__init__.py first."""
    found = [
        (path, line, f"imports {name}")
        for path in [ROOT / "bert_tf" / "__init__.py"]
        for name, line in imports_when_loaded(tree_of(path))
        if name.split(".")[0] in TENSORFLOW | {"bert_tf"}
        and part_of(name) not in FOR_ALL | {"keras_registry"}
    ]
    assert not found, places(found)


def test_the_library_imports_no_scripts_or_tests():
    outside = {path.stem for path in SCRIPTS} | {"tests", "benchmarks"}
    found = [
        (path, line, f"imports {name}")
        for path in LIBRARY
        for name, line in imports_in(tree_of(path))
        if name.split(".")[0] in outside
    ]
    assert not found, places(found)


def test_only_the_command_line_imports_absl_flags():
    flags = ("absl.flags", "absl.app")
    found = [
        (path, line, f"imports {name}")
        for path in LIBRARY
        if name_of(path) != "bert_tf.cli"
        for name, line in imports_in(tree_of(path))
        if belongs_to(name, flags) or name == "absl"
    ]
    assert not found, places(found)


def test_the_model_does_not_import_tensorflow():
    found = [
        (path, line, f"imports {name}")
        for path in LIBRARY
        if part_of(name_of(path)) in KERAS_ONLY
        for name, line in imports_in(tree_of(path))
        if name.split(".")[0] in TENSORFLOW - {"keras"}
    ]
    assert not found, places(found)


def test_mypy_ignores_tensor_code_only():
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    overrides = tomllib.loads(text)["tool"]["mypy"]["overrides"]
    [lenient] = [o["module"] for o in overrides if o.get("ignore_errors")]
    names = [name.removesuffix(".*") for name in lenient]
    assert sorted(names) == sorted(WITH_TENSORFLOW)


def tensorflow_free() -> list[pathlib.Path]:
    return [p for p in LIBRARY if not belongs_to(name_of(p), WITH_TENSORFLOW)]


def test_tensorflow_free_modules_do_not_import_it():
    found = []
    for path in tensorflow_free():
        lazily = name_of(path) in IMPORTS_IT_LAZILY
        look = imports_when_loaded if lazily else imports_in
        found += [
            (path, line, f"imports {name}")
            for name, line in look(tree_of(path))
            if name.split(".")[0] in TENSORFLOW
            or belongs_to(name, WITH_TENSORFLOW)
        ]
    assert not found, places(found)


IMPORT_AND_LOOK = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
    heavy = {"tensorflow", "keras", "tensorflow_text"} & sys.modules.keys()
    if heavy:
        sys.exit(f"{name} imports {sorted(heavy)}")
"""


def test_tensorflow_free_modules_do_not_import_it_indirectly():
    names = [name_of(path) for path in tensorflow_free()]
    assert "bert_tf.data.records" in names
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_AND_LOOK, *names],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_modules_stay_short():
    found = []
    for path in [*LIBRARY, *SCRIPTS, *PROGRAMS]:
        count = len(path.read_text(encoding="utf-8").splitlines())
        if count > MAX_MODULE_LINES:
            found.append((path, count, f"over {MAX_MODULE_LINES} lines"))
    assert not found, places(found)


@pytest.mark.parametrize("folder", ["library", "tests"])
def test_functions_stay_short(folder):
    found = []
    paths = TESTS if folder == "tests" else [*LIBRARY, *SCRIPTS, *PROGRAMS]
    for path in paths:
        code = code_lines(path)
        for function in functions_in(tree_of(path)):
            lines = range(function.lineno, function.end_lineno + 1)
            count = len(code.intersection(lines))
            if count > MAX_FUNCTION_LINES:
                what = f"{function.name} has {count} lines of code"
                found.append((path, function.lineno, what))
    assert not found, places(found)


def is_broad(handler: ast.ExceptHandler) -> bool:
    """Returns whether a handler catches everything without reraising."""
    last = handler.body[-1]
    passes_on = isinstance(last, ast.Raise) and last.exc is None
    caught = ast.walk(handler.type) if handler.type else [ast.Name("Exception")]
    names = {node.id for node in caught if isinstance(node, ast.Name)}
    return bool(names & {"Exception", "BaseException"}) and not passes_on


def test_no_handler_catches_everything():
    found = [
        (path, node.lineno, "a broad except")
        for path in OURS
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.ExceptHandler) and is_broad(node)
    ]
    assert not found, places(found)


def test_no_todo_comments():
    # Split, since this file is searched too.
    marks = ["TO" + "DO", "FIX" + "ME", "X" + "XX"]
    found = [
        (path, number, line.strip())
        for path in OURS
        for number, line in enumerate(
            path.read_text(encoding="utf-8").splitlines(), start=1
        )
        if any(mark in line for mark in marks)
    ]
    assert not found, places(found)


def test_modules_have_meaningful_names():
    vague = {"util", "utils", "helper", "helpers", "common", "misc"}
    found = [
        (path, 1, "a vague name")
        for path in OURS
        if vague & {path.stem, *path.parent.relative_to(ROOT).parts}
    ]
    assert not found, places(found)


def test_every_folder_has_its_tests():
    folders = {path.parent for path in LIBRARY} - {ROOT / "bert_tf"}
    assert not {
        folder.name
        for folder in folders
        if not list((ROOT / "tests" / folder.name).glob("test_*.py"))
    }


# The checks themselves can fail.


@pytest.fixture
def foreign(tmp_path, monkeypatch):
    """Returns a function that writes a module into another library."""
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)

    def write(name: str, text: str) -> pathlib.Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    return write


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("data/x.py", "from bert_tf.modeling import BertModel"),
        ("data/x.py", "from bert_tf import modeling"),
        ("data/x.py", "import bert_tf.modeling"),
        ("data/x.py", "from bert_tf import BertConfig"),
        ("data/x.py", "from ..text import packing"),
        ("data/x.py", "def f():\n    import bert_tf.config"),
        ("training/x.py", "from bert_tf.tasks import task"),
        ("config.py", "from bert_tf.data import masking"),
    ],
)
def test_forbidden_imports_are_found(foreign, name, line):
    assert forbidden_imports(foreign(f"bert_tf/{name}", line))


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("data/x.py", "from bert_tf.data import masking"),
        ("corpus/x.py", "from bert_tf.tokenization.packing import pack"),
        ("config.py", "from bert_tf.errors import InputError"),
        ("config.py", "from bert_tf import files"),
        ("config.py", "import bert_tfx"),
    ],
)
def test_allowed_imports_pass(foreign, name, line):
    assert not forbidden_imports(foreign(f"bert_tf/{name}", line))


def test_imports_inside_functions_are_not_imports_when_loaded(foreign):
    text = "if x:\n    import a\nclass C:\n    from b import c\n"
    text += "def f():\n    import d\n"
    text += "if typing.TYPE_CHECKING:\n    import e\nelse:\n    import g\n"
    tree = tree_of(foreign("x.py", text))
    loaded = {name for name, _ in imports_when_loaded(tree)}
    assert loaded == {"a", "b.c", "g"}
    assert {name for name, _ in imports_in(tree)} == loaded | {"d", "e"}


def test_comments_and_docstrings_are_not_code(foreign):
    path = foreign(
        "x.py",
        'def f():\n    """Doc\n\n    string."""\n\n    # Why.\n'
        '    x = """two\n    lines"""\n    return x  # Now.\n',
    )
    assert code_lines(path) == {1, 7, 8, 9}


@pytest.mark.parametrize(
    ("handler", "broad"),
    [
        ("except:\n    pass", True),
        ("except Exception:\n    pass", True),
        ("except (ValueError, BaseException) as e:\n    raise X from e", True),
        ("except BaseException:\n    clean()\n    raise", False),
        ("except ValueError:\n    pass", False),
    ],
)
def test_broad_handlers_are_found(handler, broad):
    tree = ast.parse(f"try:\n    f()\n{handler}\n")
    assert is_broad(tree.body[0].handlers[0]) is broad
