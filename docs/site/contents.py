"""Contents of the site: which pages it has, and the section of the sidebar in which each stands.

A new page under ``docs/`` needs no entry here: it goes to the first section with a pattern that fits its path, and the last
pattern fits every page.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable
from pathlib import Path

#: Sections of the sidebar, and patterns of the pages of each in their order. A page stands where it is fitted first.
SECTIONS: dict[str, tuple[str, ...]] = {
    "Start": ("docs/quickstart", "tutorials/index", "docs/choosing", "docs/coming-from/index", "docs/coming-from/*"),
    "Use": ("docs/how-to/index", "models", "docs/command-line", "docs/pitfalls", "docs/pitfalls/*", "docs/sharp-bits"),
    "Understand": ("docs/idea", "docs/theory", "docs/parts", "docs/papers", "docs/contract", "docs/*"),
    "Reference": ("api/index", "methods"),
    "Project": ("benchmarks/README", "docs/extending", "docs/extending/*", "CONTRIBUTING", "CHANGELOG"),
}
#: Pages that stand under another page of the sidebar, which has a list of them.
PARENTS: dict[str, tuple[str, ...]] = {
    "docs/how-to/index": ("docs/how-to/*",),
    "tutorials/index": ("tutorials/*",),
    "docs/papers": ("docs/papers/*",),
    "api/index": ("api/*",),
    "benchmarks/README": ("benchmarks/results/README", "benchmarks/studies/README", "benchmarks/figures/README"),
}
#: Pages of the site alone, with their paths in it. The others stand in the site where they stand in the repository.
OWN = {"index.md": "index", "models.md": "models", "how-to.md": "docs/how-to/index", "tutorials.md": "tutorials/index"}


def sources(root: Path) -> list[str]:
    """Paths of the pages that the repository has, relative to it."""
    found = [root / name for name in ("CHANGELOG.md", "CONTRIBUTING.md")]
    found += [path for path in (root / "docs").rglob("*.md") if root / "docs/site" not in path.parents]
    found += [*(root / "benchmarks").rglob("README.md"), *(root / "tutorials").glob("*.ipynb")]
    return sorted(path.relative_to(root).as_posix() for path in found)


def placed(pages: Iterable[str], patterns: dict[str, tuple[str, ...]]) -> dict[str, list[str]]:
    """The pages of each key, by the first pattern that fits; those that are named in full come before those of a ``*``."""
    rest = sorted(pages)
    found: dict[str, list[str]] = {key: [] for key in patterns}
    ordered = [(key, pattern) for key, several in patterns.items() for pattern in several]
    for exact in (True, False):
        for key, pattern in ordered:
            if exact == ("*" not in pattern):
                found[key] += [page for page in rest if fnmatch.fnmatchcase(page, pattern)]
                rest = [page for page in rest if page not in found[key]]
    return found


def toctree(pages: Iterable[str], *options: str) -> str:
    """A list of pages in MyST; with the option ``:hidden:`` it is one for the sidebar alone."""
    head = ["```{toctree}", *options]
    return "\n".join([*head, "", *(f"/{page}" for page in pages), "```", ""])


def by_mention(pages: Iterable[str], text: str) -> list[str]:
    """Pages in the order in which a text links to them; the others after these."""
    return sorted(pages, key=lambda page: (text.find(f"{page}.md") % (len(text) + 1), page))


def tree(pages: Iterable[str]) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """The pages of each section of the sidebar, and those under each page that has some."""
    pages = set(pages) - {"index"}
    below = placed(pages - set(PARENTS), PARENTS)
    return placed(pages - {page for some in below.values() for page in some}, SECTIONS), below
