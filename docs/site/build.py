"""Build the site: ``python docs/site/build.py [options of sphinx-build]`` writes build/docs from the pages of the repository.

The pages are copied to build/site with the paths that they have in the repository, so that their links to each other hold, and
what is made from the package and the notebooks is written beside them. Then Sphinx runs on the copies.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tomllib
from pathlib import Path

import api_pages
import contents
import galleries
from links import Resolver, rewritten
from PIL import Image
from sphinx.cmd.build import main as sphinx_build

import pyro_dgp

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
STAGE, OUTPUT = ROOT / "build/site", ROOT / "build/docs"
MARK = re.compile(r"^<!-- (?P<what>[a-z]+)(?:: (?P<which>.+))? -->$", re.MULTILINE)


def repository() -> str | None:
    """Address of the repository, if ``project.urls`` of pyproject.toml has one as ``Repository``."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return project.get("urls", {}).get("Repository")


def section(text: str, heading: str) -> str:
    """A section of a Markdown page, its heading with it."""
    found = re.search(rf"^(#+) {re.escape(heading)}\n.*?(?=^##? |\Z)", text, re.DOTALL | re.MULTILINE)
    if found is None:
        raise ValueError(f"README.md has no section {heading!r}, which a page of docs/site/pages shows: name one that it has")
    return found[0]


class Site:
    """The copies of the pages, and what is written beside them."""

    def __init__(self) -> None:
        self.sources = contents.sources(ROOT)
        self.own = {f"{path}.md": HERE / "pages" / name for name, path in contents.OWN.items()}
        pages = {*self.sources, *self.own, "methods.md", "api/index.rst"}
        self.resolve = Resolver(ROOT, pages, repository())

    def markdown(self, text: str, source: str, page: str) -> str:
        """Text of the file ``source`` with links that hold in ``page``."""
        return rewritten(text, lambda target: self.resolve(target, source=source, page=page))

    def copy(self, source: str) -> None:
        """Copy a page, or the cells of a notebook."""
        text = (ROOT / source).read_text()
        if source.endswith(".md"):
            return write(source, self.markdown(text, source, source))
        notebook = json.loads(text)
        for cell in notebook["cells"]:
            if cell["cell_type"] == "markdown":
                cell["source"] = self.markdown("".join(cell["source"]), source, source)
        write(source, json.dumps(notebook))

    def fill(self, page: str, template: Path) -> None:
        """Write a page of the site alone, with the parts that its marks ask for."""
        readme = (ROOT / "README.md").read_text()
        makers = {
            "readme": lambda which: self.markdown(section(readme, which), "README.md", page),
            "tutorials": lambda _: galleries.tutorials(ROOT, STAGE),
            "howto": lambda _: galleries.how_to(ROOT),
        }
        text = self.markdown(template.read_text(), page, page)
        write(page, MARK.sub(lambda mark: makers[mark["what"]](mark["which"]), text))

    def pictures(self) -> None:
        """Small pictures of all figures, for the gallery of models."""
        for file in [*(ROOT / "benchmarks/figures").glob("*.png"), ROOT / "docs/first-run.png"]:
            galleries.thumbnail(Image.open(file), STAGE / "thumbnails" / file.name)

    def stage(self) -> None:
        """Write all pages."""
        self.pictures()
        for source in self.sources:
            self.copy(source)
        for page, template in self.own.items():
            self.fill(page, template)
        write("methods.md", galleries.methods(pyro_dgp.METHODS))
        api = api_pages.write(pyro_dgp, (ROOT / "docs/parts.md").read_text(), STAGE / "api")
        for file in sorted(self.resolve.files):
            (STAGE / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / file, STAGE / file)
        self.join([Path(page).with_suffix("").as_posix() for page in (*self.sources, *self.own, "methods.md")], api)

    def join(self, pages: list[str], api: list[str]) -> None:
        """Append the lists of pages that make the sidebar."""
        sections, below = contents.tree([*pages, *api])
        lists = {"index": [contents.toctree(names, caption) for caption, names in sections.items() if names]}
        readme = (ROOT / "README.md").read_text()
        below["docs/how-to/index"] = contents.by_mention(below["docs/how-to/index"], readme)
        lists |= {parent: [contents.toctree(names)] for parent, names in below.items() if parent != "api/index"}
        for page, trees in lists.items():
            file = STAGE / f"{page}.md"
            file.write_text("\n\n".join([file.read_text(), *trees]))


def write(page: str, text: str) -> None:
    """Write a page of the stage."""
    file = STAGE / page
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def main(options: list[str]) -> int:
    """Write the pages and run Sphinx, whose warnings are errors."""
    for folder in (STAGE, OUTPUT):
        shutil.rmtree(folder, ignore_errors=True)
    os.environ.setdefault("PYTHONHASHSEED", "0")
    Site().stage()
    strict = ["-b", "html", "-W", "--keep-going", "-n", "-q", "-j", "2"]
    return sphinx_build([*strict, "-c", str(HERE), *options, str(STAGE), str(OUTPUT)])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
