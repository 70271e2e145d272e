"""Turn each tutorial's source into its executed notebook: ``python tutorials/build.py``, or those of some numbers, ``... 02 05``.

A notebook begins with a badge that opens it in Colab, if ``project.urls`` of pyproject.toml names a repository on GitHub.
"""

import os
import re
import sys
import tomllib
from pathlib import Path

import jupytext
from nbclient import NotebookClient
from nbformat.v4 import new_markdown_cell

FOLDER = Path(__file__).parent


def repository(pyproject: str) -> str | None:
    """``owner/name`` on GitHub, from the text of a pyproject.toml; nothing where it names no repository there."""
    urls = tomllib.loads(pyproject)["project"].get("urls", {})
    found = (re.fullmatch(r"https://github\.com/([^/]+/[^/]+?)(\.git)?/?", url) for url in urls.values())
    return next((match[1] for match in found if match), None)


def badge(repository: str, notebook: str) -> str:
    """Markdown of a badge that opens a notebook."""
    address = f"https://colab.research.google.com/github/{repository}/blob/main/tutorials/{notebook}"
    return f"[![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)]({address})"


def build(source: Path, repository: str | None) -> None:
    """Execute one tutorial and write its notebook beside it."""
    notebook, target = jupytext.read(source), source.with_suffix(".ipynb")
    NotebookClient(notebook, timeout=1200, resources={"metadata": {"path": str(FOLDER)}}).execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
    if repository is not None:
        notebook.cells.insert(0, new_markdown_cell(badge(repository, target.name)))
    jupytext.write(notebook, target)
    print(target.name)


if __name__ == "__main__":
    os.environ["PYTHONWARNINGS"] = "ignore:IProgress not found"  # tqdm's, about widgets that no tutorial has
    where = repository((FOLDER.parent / "pyproject.toml").read_text())
    for path in sorted(FOLDER.glob("[0-9]*.py")):
        if not sys.argv[1:] or path.name[:2] in sys.argv[1:]:
            build(path, where)
