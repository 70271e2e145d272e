"""Build the site: ``python docs/site/build.py [options of sphinx-build]`` writes build/docs. Warnings are errors."""

from __future__ import annotations

import os
import shutil
import sys

from sphinx.cmd.build import main as sphinx_build
from staging import HERE, ROOT, Site

STAGE, OUTPUT = ROOT / "build/site", ROOT / "build/docs"


def main(options: list[str]) -> int:
    """Write the pages, and run Sphinx on them."""
    for folder in (STAGE, OUTPUT):
        shutil.rmtree(folder, ignore_errors=True)
    Site(STAGE).stage()
    strict = ["-b", "html", "-W", "--keep-going", "-n", "-q", "-j", str(min(4, os.cpu_count() or 1))]
    status = sphinx_build([*strict, "-c", str(HERE), *options, str(STAGE), str(OUTPUT)])
    if status == 0:
        print(f"the site is in {OUTPUT.relative_to(ROOT)}: open {OUTPUT.relative_to(ROOT)}/index.html in a browser")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
