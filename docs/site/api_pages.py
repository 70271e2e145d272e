"""Pages of the reference: one for each row of the table of ``docs/parts.md``, with every public name of the package."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import galleries

#: Papers that docstrings cite by a word in brackets, by a preset or a named method that comes from each.
CITED = {"DSVI": "ashman2020", "DSPP": "dspp", "AVDGP": "avdgp-ar1", "SGHMC": "sghmc"}
ROW = re.compile(r"^\| (?P<part>[\w ]+) \| (?P<what>.+?) \| (?P<names>.+) \|$", re.MULTILINE)
HEAD = ("part", "---")


def parts(text: str, public: list[str]) -> dict[str, tuple[str, list[str]]]:
    """What each row of the table says of its part, and its public names in their order; a name goes to the first row that has it.

    :param text: the page, in Markdown.
    :raises ValueError: where a public name is in no row.
    """
    left, found = set(public), {}
    for row in ROW.finditer(text):
        if row["part"] in HEAD:
            continue
        names = [name for name in dict.fromkeys(re.findall(r"`(\w+)`", row["names"])) if name in left]
        left -= set(names)
        found[row["part"]] = (row["what"], names)
    if left:
        raise ValueError(
            f"docs/parts.md has no row with {', '.join(sorted(left))}: add the names to the part they belong to"
        )
    return found


def comment(package: ModuleType, name: str) -> str:
    """The ``#:`` lines above a public value in the file that defines it."""
    face = ast.parse(Path(package.__file__ or "").read_text())
    module = next(
        node.module or ""
        for node in face.body
        if isinstance(node, ast.ImportFrom) and name in {alias.name for alias in node.names}
    )
    folder = Path(package.__file__ or "").parents[1] / module.replace(".", "/")
    for file in sorted(folder.glob("*.py")) if folder.is_dir() else [folder.with_suffix(".py")]:
        if above := re.search(rf"((?:^#: .*\n)+)^{name}\b.*=", file.read_text(), re.MULTILINE):
            return " ".join(line.removeprefix("#: ") for line in above[1].splitlines())
    raise ValueError(f"{name} of {module} has no comment '#: ...' above it: say there what it is")


def summary(value: Any) -> str:
    """The first sentence of a docstring."""
    first = inspect.cleandoc(value.__doc__ or "").split("\n\n")[0].replace("\n", " ")
    return re.split(r"(?<=[.!?])\s+(?=[A-Z])", first)[0]


def entry(package: ModuleType, name: str) -> tuple[str, str, str]:
    """A link to a public name, its entry, and what it is in a sentence, all in reStructuredText."""
    value = getattr(package, name)
    if inspect.isclass(value):
        role, body = "class", f".. autoclass:: {name}\n"
    elif callable(value):
        role, body = "func", f".. autofunction:: {name}\n"
    else:
        text = comment(package, name)
        return f":data:`{name}`", f".. py:data:: {name}\n\n   {text}\n", text
    return f":{role}:`{name}`", body, summary(value)


def title(part: str) -> str:
    """A heading, such as "MCMC" or "Prior"."""
    return part[0].upper() + part[1:]


def page(package: ModuleType, part: str, what: str, names: list[str]) -> str:
    """The page of one part."""
    entries = [entry(package, name) for name in names]
    listed = "\n".join(f"   * - {link}\n     - {text}" for link, _, text in entries)
    head = f"{title(part)}\n{'=' * len(part)}\n\n{literal(what)}.\n\n.. currentmodule:: {package.__name__}\n"
    table = f".. list-table::\n   :widths: 30 70\n   :class: names\n\n{listed}\n"
    return "\n".join([head, table, *(body for _, body, _ in entries)])


def literal(markdown: str) -> str:
    """Markdown of one line as reStructuredText: code, links as their words."""
    return re.sub(r"(?<!`)`([^`]+)`(?!`)", r"``\1``", re.sub(r"\[([^]]+)\]\([^)]+\)", r"\1", markdown))


def citations(package: ModuleType) -> str:
    """What the words in brackets stand for, in reStructuredText."""
    known = package.METHODS | package.PRESETS
    papers = ((key, galleries.paper_of(known[name].paper)) for key, name in CITED.items())
    return (
        "Docstrings cite equations and sections of papers: "
        + "; ".join(f"[{key}] is {text}" for key, text in papers)
        + "."
    )


def write(package: ModuleType, table: str, folder: Path) -> list[str]:
    """Write the pages of all parts and their contents into ``folder``, and return their names."""
    found = parts(table, package.__all__)
    folder.mkdir(parents=True, exist_ok=True)
    names = {part: part.replace(" ", "-") for part in found}
    for part, (what, public) in found.items():
        (folder / f"{names[part]}.rst").write_text(page(package, part, what, public))
    rows = "\n".join(
        f"   * - :doc:`{title(part)} <{names[part]}>`\n     - {literal(what)}\n     - "
        + ", ".join(entry(package, name)[0] for name in public)
        for part, (what, public) in found.items()
    )
    order = "\n".join(f"   {name}" for name in names.values())
    intro = "Every public name, by the part of a method that it is. All are imported from ``pyro_dgp``."
    (folder / "index.rst").write_text(
        f"API reference\n=============\n\n{intro}\n\n{citations(package)}\n\n.. currentmodule:: {package.__name__}\n\n"
        f".. toctree::\n   :hidden:\n\n{order}\n\n"
        f".. list-table::\n   :header-rows: 1\n   :widths: 15 35 50\n   :class: names\n\n"
        f"   * - part\n     - what it is\n     - names\n{rows}\n"
    )
    return ["api/index", *(f"api/{name}" for name in names.values())]
