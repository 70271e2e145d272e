"""Pages made from what the repository has: tutorials with a figure of each, and methods by paper."""

from __future__ import annotations

import base64
import io
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from PIL import Image, ImageChops

SIZE = (640, 420)
LOCATOR = re.compile(r", (?=(?:Eq\.|section|footnote|Algorithm|appendix|table|C\.)[ \d])")


def thumbnail(image: Image.Image, file: Path) -> None:
    """Write a picture without its white margin, made small enough for a card."""
    file.parent.mkdir(parents=True, exist_ok=True)
    whole = image.convert("RGB")
    small = whole.crop(ImageChops.invert(whole).getbbox())
    scale = max(SIZE[0] / small.width, SIZE[1] / small.height)
    if scale < 1:
        small = small.resize((round(small.width * scale), round(small.height * scale)), Image.Resampling.LANCZOS)
    small.save(file)


def opening(text: str) -> tuple[str, str]:
    """Title and first paragraph of a Markdown page, without links."""
    heading = re.search(r"^# (.+)$", text, re.MULTILINE)
    if heading is None:
        raise ValueError(f"a page begins with a heading of one '#', and this one does not: {text[:60]!r}")
    paragraphs = re.split(r"\n\s*\n", text[heading.end() :].strip())
    return heading[1], re.sub(r"\[([^]]+)\]\([^)]+\)", r"\1", " ".join(paragraphs[0].split()))


def figures(notebook: Mapping[str, Any]) -> list[Image.Image]:
    """The pictures that the cells of an executed notebook show."""
    data = [output.get("data", {}) for cell in notebook["cells"] for output in cell.get("outputs", [])]
    return [Image.open(io.BytesIO(base64.b64decode(each["image/png"]))) for each in data if "image/png" in each]


def cards(entries: Iterable[tuple[str, str, str, str]]) -> str:
    """A grid of cards in MyST: title, text, page and picture of each."""
    grid = "".join(
        f"\n:::{{grid-item-card}} {title}\n:link: {page}\n:link-type: doc\n:img-top: {picture}\n:img-alt: {title}\n\n"
        f"{text}\n:::\n"
        for title, text, page, picture in entries
    )
    return f"::::{{grid}} 1 1 2 2\n:gutter: 3\n:class-container: gallery\n{grid}::::\n"


def tutorials(root: Path, stage: Path) -> str:
    """Cards of the tutorials, each with the largest of its figures."""
    entries = []
    for file in sorted((root / "tutorials").glob("*.ipynb")):
        notebook = json.loads(file.read_text())
        largest = max(figures(notebook), key=lambda image: image.width * image.height)
        thumbnail(largest, stage / "thumbnails" / f"{file.stem}.png")
        title, text = opening("".join(notebook["cells"][0]["source"]))
        entries.append((title, text, f"/tutorials/{file.stem}", f"/thumbnails/{file.stem}.png"))
    return cards(entries)


def paper_of(reference: str) -> str:
    """A reference without the place in the paper."""
    return LOCATOR.split(reference, maxsplit=1)[0]


def methods(table: Mapping[str, Any]) -> str:
    """The page of named methods, by the papers that they come from, in Markdown."""
    papers: dict[str, list[str]] = {}
    for method in table.values():
        for reference in method.paper.split("; "):
            paper, *place = LOCATOR.split(reference, maxsplit=1)
            row = f"| `{method.name}` | {method.summary}{''.join(f' ({each})' for each in place)} |"
            papers.setdefault(paper, []).append(row)
    head = "| method | what it is |\n|---|---|\n"
    sections = "\n\n".join(f"## {paper}\n\n{head}" + "\n".join(rows) for paper, rows in papers.items())
    intro = (
        f"The {len(table)} named methods of `METHODS`, under the paper that each comes from. `pyro-dgp compare --methods` and "
        "`compare(methods=...)` take the names; `pyro-dgp methods` prints this list. Cite the papers of the methods that you use. "
        "A method that joins two papers stands under both."
    )
    return f"# Methods and papers\n\n{intro}\n\n{sections}\n"
