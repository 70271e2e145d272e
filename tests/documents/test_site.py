"""The documentation site: every page of docs/ is in its sidebar, every public name in its reference, and no link of a page is dead.

Most of these tests need no Sphinx. ``make docs`` builds the site, with warnings as errors.
"""

import importlib
import re
import sys
from pathlib import Path

import pytest

import pyro_dgp

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "docs/site"))
api_pages, contents, docstrings, galleries, links, staging = (
    importlib.import_module(name) for name in ("api_pages", "contents", "docstrings", "galleries", "links", "staging")
)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    made = staging.Site(tmp_path_factory.mktemp("site"))
    made.stage()
    return made


def listed(text):
    """Pages of the lists of a page."""
    return [
        page
        for block in re.findall(r"```\{toctree\}\n(.*?)```", text, re.DOTALL)
        for page in re.findall(r"^/(.+)$", block, re.MULTILINE)
    ]


def test_every_page_is_once_in_the_sidebar(site):
    pages = [listed(path.read_text()) for path in site.folder.rglob("*.md")]
    found = [page for some in pages for page in some if not page.startswith("api/")]
    files = [*site.folder.rglob("*.md"), *site.folder.rglob("*.ipynb")]
    assert sorted([*found, "index"]) == sorted(str(path.relative_to(site.folder).with_suffix("")) for path in files)
    assert {page.removesuffix(".md") for page in contents.sources(ROOT) if page.startswith("docs/")} <= set(found)
    assert set(contents.sources(ROOT)) >= {
        "docs/quickstart.md",
        "docs/how-to/samplers.md",
        "benchmarks/results/README.md",
    }


def test_a_new_page_appears_by_itself():
    new = [
        "docs/something-new",
        "docs/how-to/a-new-task",
        "docs/coming-from/elsewhere",
        "docs/pitfalls/nan",
        "docs/odd/one",
    ]
    sections, below = contents.tree([*new, "docs/parts", "docs/how-to/index"])
    assert sections["Understand"] == ["docs/parts", "docs/odd/one", "docs/something-new"]
    assert sections["Start"] == ["docs/coming-from/elsewhere"]
    assert sections["Use"] == ["docs/how-to/index", "docs/pitfalls/nan"]
    assert below["docs/how-to/index"] == ["docs/how-to/a-new-task"]


def test_every_public_name_is_in_the_reference(site):
    text = "\n".join(path.read_text() for path in (site.folder / "api").glob("*.rst"))
    entries = re.findall(r"^\.\. (?:autoclass|autofunction|py:data):: (\w+)$", text, re.MULTILINE)
    assert sorted(entries) == sorted(pyro_dgp.__all__)
    order = re.findall(r"^   ([\w-]+)$", (site.folder / "api/index.rst").read_text(), re.MULTILINE)
    assert set(order) == {path.stem for path in (site.folder / "api").glob("*.rst")} - {"index"}


def test_a_public_name_without_a_row_is_named():
    with pytest.raises(ValueError, match=r"no row with Newcomer: add"):
        api_pages.parts(
            "| part | what | names |\n|---|---|---|\n| prior | A GP | `GaussianProcess` |",
            ["GaussianProcess", "Newcomer"],
        )


def test_papers_that_docstrings_cite_are_explained(site):
    sources = "\n".join(path.read_text() for path in Path(pyro_dgp.__file__).parent.rglob("*.py"))
    cited = set(re.findall(r"(?<![\w\])])\[([A-Z]{3,})\](?= \d| section| C\.)", sources))
    assert cited and cited <= set(api_pages.CITED), cited
    index = (site.folder / "api/index.rst").read_text()
    assert all(f"[{key}] is " in index for key in api_pages.CITED)
    assert (
        "[DSVI] is Ashman, Branigan, Tsetis, Xia 2020, a report" in index
    )  # equations 3.4 to 3.13 are numbers of that report


def test_links_of_the_copies_lead_somewhere(site):
    for page in site.folder.rglob("*.md"):
        targets: list[str] = []

        def collect(target, targets=targets):
            targets.append(target)
            return target

        links.rewritten(page.read_text(), collect)
        for target in targets:
            if not links.ELSEWHERE.match(target):
                assert (page.parent / target.partition("#")[0]).exists(), (page, target)


def test_cards_have_their_page_and_picture(site):
    for page in site.folder.rglob("*.md"):
        text = page.read_text()
        for picture in re.findall(r"^:img-top: /?(.+)$", text, re.MULTILINE):
            assert (site.folder / picture).exists(), picture
        for target in re.findall(r"^:link: /?(.+)$", text, re.MULTILINE):
            assert any((site.folder / f"{target}{ending}").exists() for ending in (".md", ".rst", ".ipynb")), target
    assert len(list((site.folder / "thumbnails").glob("0*.png"))) == len(list((ROOT / "tutorials").glob("0*.ipynb")))


def test_every_method_stands_under_its_paper(site):
    text = (site.folder / "methods.md").read_text()
    assert set(re.findall(r"^\| `([\w-]+)` \|", text, re.MULTILINE)) == set(pyro_dgp.METHODS)
    papers = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert len(papers) == len(set(papers)) and not [paper for paper in papers if re.search(r"Eq\.|section|;", paper)]
    for paper in ("Deep Sigma Point Processes", "Amortized Variational Inference for Deep Gaussian Processes"):
        assert sum(heading.endswith(f" {paper}") for heading in papers) == 1


def test_code_is_no_link():
    text = "see [a](b.md) and `[c](d.md)`\n```python\nx[e](f)\n```\n![g](h.png) ``[i](`j`)`` [k](l.md)"
    changed = links.rewritten(text, lambda target: f"<{target}>")
    assert changed == "see [a](<b.md>) and `[c](d.md)`\n```python\nx[e](f)\n```\n![g](<h.png>) ``[i](`j`)`` [k](<l.md>)"


def test_where_links_lead():
    pages = {"index.md", "docs/parts.md", "docs/how-to/samplers.md", "benchmarks/README.md"}
    without = links.Resolver(ROOT, pages, None)
    at = {"source": "docs/how-to/samplers.md", "page": "docs/how-to/samplers.md"}
    assert without("../parts.md#the-parts", **at) == "../parts.md#the-parts"
    assert without("../../README.md", **at) == "../../index.md"
    assert without("../../benchmarks", **at) == "../../benchmarks/README.md"
    assert without("https://pyro.ai", **at) == "https://pyro.ai" and without("#chains", **at) == "#chains"
    assert without("docs/parts.md", source="README.md", page="docs/how-to/index.md") == "../parts.md"
    assert without("../../LICENSE", **at) == "../../LICENSE" and without.files == {"LICENSE"}
    assert (
        links.Resolver(ROOT, pages, "https://host/name/")("../../LICENSE", **at)
        == "https://host/name/blob/main/LICENSE"
    )
    with pytest.raises(ValueError, match=r"links to gone\.md, which is not in the repository"):
        without("gone.md", **at)
    with pytest.raises(ValueError, match=r"links to the folder"):
        without("../../tests", **at)


def test_a_section_that_the_readme_lost_is_named():
    with pytest.raises(ValueError, match=r"no section 'Gone'"):
        staging.section("# a\n\n## Here\n\nx\n", "Gone")
    assert staging.section("# a\n\n## Here\n\nx\n\n## Next\n", "Here") == "## Here\n\nx\n\n"


def test_tables_of_docstrings():
    lines = ["Text.", "", "| a | b |", "|---|---|", "| ``x \\| y`` | |", "", "End."]
    expected = [
        "",
        ".. list-table::",
        "   :header-rows: 1",
        "",
        "   * - a",
        "     - b",
        "   * - ``x | y``",
        "     - ",
        "",
    ]
    assert docstrings.with_tables(lines) == ["Text.", "", *expected, "", "End."]


def test_no_description_is_read_as_a_numbered_list():
    """``:param rows: N.`` is item 14 of a list to Sphinx, which warns of nothing: say "number of rows, N."."""
    item = re.compile(r"^ *:(?:param|ivar|returns?)[^:]*: *(?:(?:\w|[ivx]+|\d+)[.)]|[-*+])(?: |$).*", re.MULTILINE)
    files = Path(pyro_dgp.__file__).parent.rglob("*.py")
    assert not [found for file in files for found in item.findall(file.read_text())]


def test_references_must_exist():
    pytest.importorskip("sphinx", reason="the tools for documents are not installed: make docs installs them")
    references = importlib.import_module("references")
    assert references.exists("torch.nn.Module") and references.exists("Covariance") and references.exists("sizes")
    assert not references.exists("pyro_dgp.kernels.Gone") and not references.exists("Gone.method")


def test_no_link_is_within_a_link(site, tmp_path):
    """Code that is the text of a link leads where the link says, and is not linked to the reference as well."""
    why = "the tools for documents are not installed: make docs installs them"
    sphinx, docutils = (pytest.importorskip(f"sphinx.{name}", reason=why) for name in ("application", "util.docutils"))
    references = importlib.import_module("references")
    texts = {path.relative_to(site.folder): path.read_text() for path in site.folder.rglob("*.md")}
    pages = [str(path) for path, text in texts.items() if re.search(r"\[[^\]\n]*`[^\]\n]*\]\(", text)]
    (tmp_path / "conf.py").write_text('extensions = ["myst_parser"]\nmyst_enable_extensions = ["dollarmath"]\n')
    linked, doubled = [], []

    def look(app, doctree):
        for node in doctree.findall(lambda node: isinstance(node, references.LINKS)):
            outer = [each for each in references.around(node) if isinstance(each, references.LINKS)]
            (doubled if outer else linked).append((app.env.docname, node.astext()))

    with docutils.docutils_namespace():
        app = sphinx.Sphinx(
            *(site.folder, tmp_path, tmp_path / "out", tmp_path / "trees", "dummy"),
            confoverrides={"include_patterns": ["index.md", *pages]},
            status=None,
            warning=None,
        )
        app.connect("doctree-read", references.link_names)
        app.connect("doctree-read", look)
        app.builder.read()
    assert not doubled
    assert {("docs/how-to/own-model", name) for name in ("MissingOutputs(Gaussian(2))", "Standardizer")} <= set(linked)
