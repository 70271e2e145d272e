"""The pages as Sphinx reads them: copies of the repository's, and pages that are made from the package and the notebooks.

A copy has the path that the page has in the repository, so that the links of pages to each other hold.
"""

from __future__ import annotations

import json
import re
import shutil
import tomllib
from pathlib import Path

import api_pages
import contents
import galleries
from links import Resolver, rewritten
from PIL import Image

import pyro_dgp

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
MARK = re.compile(r"^<!-- (?P<what>[a-z]+)(?:: (?P<which>.+))? -->$", re.MULTILINE)


def repository() -> str | None:
    """Address of the repository, if ``project.urls`` of pyproject.toml has one as ``Repository``."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return project.get("urls", {}).get("Repository")


def section(text: str, heading: str) -> str:
    """A section of a Markdown page, its heading with it."""
    found = re.search(rf"^(#+) {re.escape(heading)}\n.*?(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)
    if found is None:
        raise ValueError(
            f"README.md has no section {heading!r}, which a page of docs/site/pages shows: name one that it has"
        )
    return found[0]


class Site:
    """The copies of the pages, and what is written beside them.

    :param folder: where they are written; Sphinx reads it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sources = contents.sources(ROOT)
        self.own = {f"{path}.md": HERE / "pages" / name for name, path in contents.OWN.items()}
        pages = {*self.sources, *self.own, "methods.md", "api/index.rst"}
        self.resolve = Resolver(ROOT, pages, repository())

    def markdown(self, text: str, source: str, page: str) -> str:
        """Text of the file ``source`` with links that hold in ``page``."""
        return rewritten(text, lambda target: self.resolve(target, source=source, page=page))

    def write(self, page: str, text: str) -> None:
        """Write a page."""
        file = self.folder / page
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def copy(self, source: str) -> None:
        """Copy a page, or the cells of a notebook."""
        text = (ROOT / source).read_text()
        if source.endswith(".md"):
            text = self.markdown(text, source, source)
        else:
            notebook = json.loads(text)
            for cell in notebook["cells"]:
                if cell["cell_type"] == "markdown":
                    cell["source"] = self.markdown("".join(cell["source"]), source, source)
            text = json.dumps(notebook)
        self.write(source, text)

    def fill(self, page: str, template: Path) -> None:
        """Write a page of the site alone, with the parts that its marks ask for."""
        readme = (ROOT / "README.md").read_text()
        makers = {
            "readme": lambda which: self.markdown(section(readme, which), "README.md", page),
            "tutorials": lambda _: galleries.tutorials(ROOT, self.folder),
        }
        text = self.markdown(template.read_text(), page, page)
        self.write(page, MARK.sub(lambda mark: makers[mark["what"]](mark["which"]), text))

    def pictures(self) -> None:
        """Small pictures of the figures that cards name."""
        named = {name for page in self.own.values() for name in re.findall(r"thumbnails/([\w.-]+)", page.read_text())}
        for file in [*(ROOT / "benchmarks/figures").glob("*.png"), ROOT / "docs/first-run.png"]:
            if file.name in named:
                galleries.thumbnail(Image.open(file), self.folder / "thumbnails" / file.name)

    def stage(self) -> None:
        """Write all pages."""
        self.pictures()
        for source in self.sources:
            self.copy(source)
        for page, template in self.own.items():
            self.fill(page, template)
        self.write("methods.md", galleries.methods(pyro_dgp.METHODS))
        api = api_pages.write(pyro_dgp, (ROOT / "docs/parts.md").read_text(), self.folder / "api")
        for file in sorted(self.resolve.files):
            (self.folder / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / file, self.folder / file)
        self.join([Path(page).with_suffix("").as_posix() for page in (*self.sources, *self.own, "methods.md")], api)

    def join(self, pages: list[str], api: list[str]) -> None:
        """Append the lists of pages that make the sidebar."""
        sections, below = contents.tree([*pages, *api])
        tasks = section((ROOT / "README.md").read_text(), "I want to ...")
        below["docs/how-to/index"] = contents.by_mention(below["docs/how-to/index"], tasks)
        lists = {
            "index": [
                contents.toctree(names, ":hidden:", f":caption: {key}") for key, names in sections.items() if names
            ],
            "docs/how-to/index": [contents.toctree(below.pop("docs/how-to/index"), ":maxdepth: 1")],
        }
        lists |= {
            parent: [contents.toctree(names, ":hidden:")] for parent, names in below.items() if parent != "api/index"
        }
        for page, trees in lists.items():
            file = self.folder / f"{page}.md"
            file.write_text("\n\n".join([file.read_text(), *trees]))
