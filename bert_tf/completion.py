"""Scripts with which bash and zsh complete `bert-tf`: jobs and their flags.

The names of the flags are read from the source of the jobs, since importing a
job takes seconds.
"""

import ast
import os
from collections.abc import Iterable

_BASH = """\
_bert_tf() {
    local words current=${COMP_WORDS[COMP_CWORD]}
    case "$COMP_CWORD ${COMP_WORDS[1]}" in
        "1 "*) words="JOBS --help --version" ;;
FLAGS
    esac
    COMPREPLY=($(compgen -W "$words" -- "$current"))
    if [[ ${COMPREPLY[0]} == *= ]]; then
        compopt -o nospace 2>/dev/null
    fi
}
complete -o default -F _bert_tf bert-tf
"""

_ZSH = """\
_bert_tf() {
    local words_of_job
    case "$CURRENT $words[2]" in
        "2 "*) words_of_job="JOBS --help --version" ;;
FLAGS
    esac
    if compset -P '--*='; then
        _files
    else
        compadd -S '' -- ${(M)${=words_of_job}:#*=}
        compadd -- ${${=words_of_job}:#*=}
    fi
}
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
compdef _bert_tf bert-tf
"""

SHELLS = {"bash": _BASH, "zsh": _ZSH}


def script(shell: str, jobs: Iterable[str]) -> str:
    """Returns the script for a shell of SHELLS."""
    variable = {"bash": "words", "zsh": "words_of_job"}[shell]
    cases = [
        f'        *" {job}") {variable}="{" ".join(flags(job))} --help" ;;'
        for job in jobs
    ]
    text = SHELLS[shell].replace("JOBS", " ".join(jobs))
    return text.replace("FLAGS", "\n".join(cases))


def flags(job: str) -> list[str]:
    """Returns the flags of a job: --name, with "=" unless it is a boolean."""
    module = f"bert_tf.jobs.{job}"
    [run] = [
        node
        for node in _source(module).body
        if isinstance(node, ast.FunctionDef) and node.name == "run"
    ]
    [config] = run.args.args
    fields = _fields(module, ast.unparse(config.annotation))  # type: ignore[arg-type]
    return [
        f"--{name}{'' if kind.startswith('bool') else '='}"
        for name, kind in fields.items()
    ]


def _fields(module: str, name: str) -> dict[str, str]:
    """Returns the annotated fields of a class and of its base classes."""
    fields: dict[str, str] = {}
    for node in _source(module).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            if name in {alias.name for alias in node.names}:
                return _fields(node.module, name)
        elif isinstance(node, ast.ClassDef) and node.name == name:
            for base in node.bases:
                fields |= _fields(module, ast.unparse(base))
            for field in node.body:
                if isinstance(field, ast.AnnAssign):
                    kind = ast.unparse(field.annotation)
                    fields[ast.unparse(field.target)] = kind
    return fields


def _source(module: str) -> ast.Module:
    folder = os.path.dirname(os.path.dirname(__file__))
    path = os.path.join(folder, *module.split(".")) + ".py"
    with open(path, encoding="utf-8") as file:
        return ast.parse(file.read())
