"""Turn each tutorial's source into its executed notebook: ``python tutorials/build.py``, or those of some numbers, ``... 02 05``."""

import os
import sys
from pathlib import Path

import jupytext
from nbclient import NotebookClient

os.environ["PYTHONWARNINGS"] = "ignore:IProgress not found"  # tqdm's, about widgets that no tutorial has

for source in sorted(Path(__file__).parent.glob("[0-9]*.py")):
    if sys.argv[1:] and source.name[:2] not in sys.argv[1:]:
        continue
    notebook = jupytext.read(source)
    NotebookClient(notebook, timeout=1200, resources={"metadata": {"path": str(source.parent)}}).execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
    jupytext.write(notebook, source.with_suffix(".ipynb"))
    print(source.with_suffix(".ipynb").name)
