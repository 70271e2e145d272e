"""Links of Markdown pages: found outside code, and rewritten so that they lead somewhere in the built site."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Collection
from pathlib import Path

CODE = re.compile(
    r"(^ *(?P<fence>`{3,}|~{3,}).*?^ *(?P=fence)[ \t]*$|(?P<ticks>`+)(?!`).+?(?<!`)(?P=ticks)(?!`))",
    re.DOTALL | re.MULTILINE,
)
TARGET = re.compile(r"(?<=\]\()(?P<target>[^)\s]+)(?=(?:\s+\"[^\"]*\")?\))")
PICTURES = {".png", ".svg", ".jpg", ".gif"}
ELSEWHERE = re.compile(r"[a-z][a-z+.-]*:|#")


def rewritten(text: str, change: Callable[[str], str]) -> str:
    """Markdown with ``change`` applied to the target of every link and image outside code."""
    spans, end = [], 0
    for code in CODE.finditer(text):
        spans += [TARGET.sub(lambda match: change(match["target"]), text[end : code.start()]), code[0]]
        end = code.end()
    return "".join([*spans, TARGET.sub(lambda match: change(match["target"]), text[end:])])


class Resolver:
    """Where the links of pages lead in the site.

    A link to a page of the site stays. The README is the front page. A link to any other file of the repository leads to
    the repository's address if the project states one; without one the file itself becomes part of the site.

    :param root: the repository.
    :param pages: paths of all pages, relative to it.
    :param repository: address of the repository, or ``None`` where the project states none.
    :ivar files: files that are no pages and that links lead to, relative to the root.
    """

    def __init__(self, root: Path, pages: Collection[str], repository: str | None) -> None:
        self.root = root
        self.pages = pages
        self.repository = repository
        self.files: set[str] = set()

    def __call__(self, target: str, *, source: str, page: str) -> str:
        """The target in ``page`` of a link that ``source`` has, both relative to the root.

        :raises ValueError: where the link leads to nothing.
        """
        if ELSEWHERE.match(target):
            return target
        path, _, heading = target.partition("#")
        there = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        if not there.startswith("..") and (self.root / there / "README.md").exists():
            there = posixpath.join(there, "README.md")
        there = "index.md" if there == "README.md" else there
        heading = f"#{heading}" if heading else ""
        if there != "index.md" and there not in self.pages:
            if there.startswith("..") or not (self.root / there).exists():
                raise ValueError(f"{source} links to {target}, which is not in the repository: mend the link")
            if self.repository and Path(there).suffix not in PICTURES:
                return f"{self.repository.rstrip('/')}/blob/main/{there}{heading}"
            if not (self.root / there).is_file():
                raise ValueError(f"{source} links to the folder {target}, which has no README.md: link to a file of it")
            self.files.add(there)
        return posixpath.relpath(there, posixpath.dirname(page) or ".") + heading
