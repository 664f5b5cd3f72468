"""Writes the API reference from the docstrings: `make docs`.

    python docs/api_reference.py build/docs

The pages have the public names of `bert_tf` and, for every job, its function
`run`, the options and the result.
"""

import dataclasses
import inspect
import pathlib
import re
import sys
import typing
from types import ModuleType

import pdoc

import bert_tf
from bert_tf import jobs, start_tensorflow
from bert_tf.base import options

GOOGLE = pdoc.docstrings.google


def main(folder: str) -> None:
    """Writes index.html and a page for each module into `folder`."""
    start_tensorflow.quietly()
    # pdoc finds what a module contains; these names are imported lazily.
    for name in bert_tf.__all__:
        public = getattr(bert_tf, name)
        setattr(bert_tf, name, public)
        if inspect.isclass(public):
            adopt_methods(public)
    # It documents what `__all__` names, modules included.
    bert_tf.__all__.append("jobs")
    jobs.__all__ = list(jobs.JOBS)
    for name in jobs.JOBS:
        module = getattr(jobs, name)
        module.__all__ = documented(module)
        # A job has the page of its name in `bert_tf.jobs`.
        module.__name__ = f"bert_tf.jobs.{name}"
        sys.modules[module.__name__] = module
    pdoc.docstrings.google = markdown
    pdoc.render.configure(docformat="google", show_source=False)
    pdoc.pdoc("bert_tf", output_directory=pathlib.Path(folder))
    remove_dead_links(pathlib.Path(folder) / "bert_tf.html")


def adopt_methods(kind: type) -> None:
    """Copies the documented methods of our base classes into a class.

    Most bases, such as `TextModel`, are not public and have no page, and pdoc
    leaves out what a class inherits from them.
    """
    for base in kind.__mro__[1:]:
        if base.__module__.startswith("bert_tf."):
            for name, member in vars(base).items():
                is_method = hasattr(member, "__get__") and member.__doc__
                if is_method and name[0] != "_" and name not in vars(kind):
                    setattr(kind, name, member)


def remove_dead_links(page: pathlib.Path) -> None:
    """Removes the links to Keras's members, which the page leaves out."""
    text = page.read_text(encoding="utf-8")
    ids = {*re.findall(r' id="([^"]+)"', text)}
    text = re.sub(
        r'<a href="#([^"]+)">(.*?)</a>',
        lambda link: link[0] if link[1] in ids else link[2],
        text,
    )
    page.write_text(text, encoding="utf-8")


def markdown(docstring: str) -> str:
    """Converts a docstring; pdoc would render the code of examples as prose."""
    return GOOGLE(re.sub(r"(?m)^Example:\n\n", "**Example:**\n\n", docstring))


def documented(module: ModuleType) -> list[str]:
    """Returns `run`, the class of its options and the class of its result.

    The page of a job begins with what its --help prints.
    """
    hints = typing.get_type_hints(module.run)
    config = hints["config"]
    module.__doc__ = sys.modules[config.__module__].__doc__
    config.__doc__ = f"{config.__doc__}\n\n{described_options(config)}"
    names = ["run", config.__name__]
    result = [hints["return"], *typing.get_args(hints["return"])]
    for kind in filter(inspect.isclass, result):
        if kind.__module__.startswith("bert_tf"):
            vars(module)[kind.__name__] = kind
            names.append(kind.__name__)
    return names


def described_options(config: type[options.Options]) -> str:
    """Returns the section `Args:` of a configuration's docstring."""
    lines = ["Args:"]
    for name, (_, known) in options.declared(config).items():
        default = config.__dataclass_fields__[name].default
        words = [known.help, known.range]
        if known.choices:
            words.append(f"One of {', '.join(known.choices)}.")
        if default is dataclasses.MISSING:
            words.append("Required.")
        lines.append(f"  {name}: {' '.join(filter(None, words))}")
    return "\n".join(lines)


if __name__ == "__main__":
    main(sys.argv[1])
