"""Sphinx's settings for the site; ``build.py`` writes the pages and runs it."""

from __future__ import annotations

import importlib
import sys
import tomllib
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE))

import docstrings  # noqa: E402
import parameter_types  # noqa: E402
import references  # noqa: E402
from sphinx.util.fileutil import copy_asset  # noqa: E402

project = "pyro_dgp"
author = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["authors"][0]["name"]
release = version = importlib.import_module("pyro_dgp").__version__
project_copyright = author

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.viewcode", "sphinx.ext.mathjax", "sphinx_design"]
exclude_patterns = ["**/.ipynb_checkpoints"]
nitpicky = True

myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 5
myst_links_external_new_tab = False
nb_execution_mode = "off"
# Output that shows what a program printed in one block, as a terminal would.
nb_merge_streams = True

autodoc_default_options = {"members": True, "show-inheritance": True, "member-order": "bysource"} | {
    "exclude-members": "get_extra_state, set_extra_state"
}
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented_params"
autodoc_typehints_format = "short"
autodoc_inherit_docstrings = False
autodoc_preserve_defaults = True
maximum_signature_line_length = 90
python_use_unqualified_type_names = True
add_module_names = False

html_theme = "furo"
html_title = f"pyro_dgp {release}"
html_static_path = [str(HERE / "static")]
html_css_files = ["site.css"]
html_copy_source = html_show_sourcelink = False
html_show_copyright = html_show_sphinx = False
pygments_style, pygments_dark_style = "friendly", "monokai"

# MathJax is served from the site, so that mathematics shows without a connection and no reader is sent elsewhere. It needs one
# script and its fonts, out of the many files of the package.
MATHJAX = Path(next(iter(importlib.import_module("sphinx-mathjax-offline").__path__))) / "static/mathjax"
MATHJAX_FILES = ("tex-chtml.js", "output/chtml/fonts", "input/tex/extensions")
mathjax_path = "mathjax/tex-chtml.js"

# 'make docs ARGS="-t intersphinx"' links the names of other libraries to their pages, which needs a connection.
if tags.has("intersphinx"):  # type: ignore[name-defined]  # noqa: F821
    extensions.append("sphinx.ext.intersphinx")
intersphinx_mapping = {
    "python": ("https://docs.python.org/3", None),
    "torch": ("https://docs.pytorch.org/docs/stable", None),
    "pyro": ("https://docs.pyro.ai/en/stable", None),
    "numpy": ("https://numpy.org/doc/stable", None),
}


def copy_mathjax(app: Any, error: Exception | None) -> None:
    """Copy MathJax's script and fonts into the site."""
    for name in MATHJAX_FILES if error is None else ():
        copy_asset(
            MATHJAX / name,
            Path(app.outdir, "_static/mathjax", name).parent
            if "." in name
            else Path(app.outdir, "_static/mathjax", name),
        )


def setup(app: Any) -> None:
    """Connect what reads docstrings and resolves references, and MathJax's files."""
    app.connect("autodoc-process-docstring", docstrings.process)
    app.connect("autodoc-process-signature", parameter_types.take)
    app.connect("doctree-read", references.link_names)
    app.connect("missing-reference", references.resolve)
    app.connect("build-finished", copy_mathjax)
