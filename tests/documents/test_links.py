"""Links and images of every document lead somewhere, also to the heading that they name."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BENCHMARKS = [f"benchmarks/{folder}README.md" for folder in ("", "studies/", "results/", "figures/")]
# Those of docs/site lead somewhere in the site, which its own tests hold.
PAGES = sorted(
    str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md") if ROOT / "docs/site" not in path.parents
)


def prose(path):
    """The text of a page without its blocks of code."""
    return re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)


def anchors(path):
    """The names that GitHub gives to the headings of a page."""
    text = prose(path)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", *BENCHMARKS, *PAGES])
def test_links_lead_somewhere(document):
    path = ROOT / document
    for target in re.findall(r"\]\((?!http)([^)]+)\)", prose(path)):
        file, _, heading = target.partition("#")
        there = path.parent / file if file else path
        assert there.exists(), target
        assert not heading or heading in anchors(there), target


def test_every_page_is_linked_from_another():
    texts = {name: (ROOT / name).read_text() for name in ["README.md", *PAGES]}
    for page in PAGES:
        assert any(page.rpartition("/")[2] in text for name, text in texts.items() if name != page), page


def test_what_the_templates_of_issues_name_is_there():
    templates = [*(ROOT / ".github").rglob("*.yml"), *(ROOT / ".github").rglob("*.md")]
    named = {path for template in templates for path in re.findall(r"docs/[\w/-]+(?:\.md)?", template.read_text())}
    assert len(named) >= 4
    for path in named:
        assert (ROOT / path).exists(), path
