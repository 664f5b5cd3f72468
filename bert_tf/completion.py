"""Scripts with which bash and zsh complete `bert-tf`: jobs and their flags."""

from collections.abc import Mapping

from bert_tf.options import Options, declared

_BASH = """\
_bert_tf() {
    local words current=${COMP_WORDS[COMP_CWORD]}
    case "$COMP_CWORD ${COMP_WORDS[1]}" in
        "1 "*) words="JOBS env --help --version" ;;
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
        "2 "*) words_of_job="JOBS env --help --version" ;;
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


def script(shell: str, jobs: Mapping[str, type[Options]]) -> str:
    """Returns the script for a shell of SHELLS.

    Args:
      shell: The shell.
      jobs: The class of each job's options.
    """
    variable = {"bash": "words", "zsh": "words_of_job"}[shell]
    cases = [
        f'        *" {job}") {variable}="{" ".join(flags(kind))} --help" ;;'
        for job, kind in jobs.items()
    ]
    text = SHELLS[shell].replace("JOBS", " ".join(jobs))
    return text.replace("FLAGS", "\n".join(cases))


def flags(config: type[Options]) -> list[str]:
    """Returns the flags of options: --name, with "=" unless it is a boolean."""
    return [
        f"--{name}{'' if kind is bool else '='}"
        for name, (kind, _) in declared(config).items()
    ]
