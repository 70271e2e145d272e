"""The READMEs of the benchmarks: links and anchors lead somewhere, commands are accepted, and every study, file and figure is named."""

import ast
import re
import runpy
import shlex
import sys
import warnings
from argparse import ArgumentParser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"
READMES = [BENCHMARKS / "README.md", *(BENCHMARKS / name / "README.md" for name in ("studies", "results", "figures"))]
STUDIES = sorted(path.stem for path in (BENCHMARKS / "studies").glob("*.py") if path.stem != "__init__")


def anchors(document):
    """Anchors of the headings of a document, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", READMES, ids=lambda path: path.parent.name)
def test_links_images_and_anchors_exist(document):
    links = re.findall(r"\]\((?!http)([^)]+)\)", document.read_text())
    assert links
    for link in links:
        name, _, anchor = link.partition("#")
        target = document.parent / name if name else document
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def commands():
    """Whole commands of the READMEs, in blocks or between backquotes."""
    found = set()
    for document in READMES:
        found.update(re.findall(r"^    (python -m benchmarks.+)$", document.read_text(), re.MULTILINE))
        found.update(re.findall(r"`(python -m benchmarks[^`]+)`", document.read_text()))
    return sorted(command for command in found if "NAME" not in command and "|" not in command)


class AcceptedError(Exception):
    """The options were parsed."""


@pytest.mark.parametrize("command", commands())
def test_every_command_is_accepted_by_its_study(command, monkeypatch):
    module, *options = shlex.split(command.replace("EXPERIMENT", "small"))[2:]

    def accepted(self, *args):
        self.parse_known_args(options)
        assert not self.parse_known_args(options)[1], "unknown options"
        raise AcceptedError

    monkeypatch.setattr(sys, "argv", [module, *options])
    monkeypatch.setattr(ArgumentParser, "parse_args", accepted)
    name = "benchmarks.__main__" if module == "benchmarks" else module
    with warnings.catch_warnings(), pytest.raises(AcceptedError):
        warnings.simplefilter("ignore", RuntimeWarning)  # the module was imported before
        runpy.run_module(name, run_name="__main__")


def test_commands_are_found():
    assert len(commands()) > 20


@pytest.mark.parametrize("study", STUDIES)
def test_every_study_is_described_and_has_a_command(study):
    index, described = (document.read_text() for document in READMES[:2])
    assert f"| `{study}`" in index and f"### `{study}`" in described
    docstring = ast.get_docstring(ast.parse((BENCHMARKS / "studies" / f"{study}.py").read_text()))
    short = {"accuracy_beside_published": "accuracy", "speed_beside_gpytorch": "speed"}
    short |= {"profile_of_a_step": "profile", "scaling_of_time_and_memory": "scaling"}
    command = f"benchmarks {short[study]}" if study in short else f"benchmarks.studies.{study}"
    assert f"python -m {command}" in docstring
    assert f"python -m {command}" in "".join(commands())


@pytest.mark.parametrize("folder", ["results", "figures"])
def test_every_file_is_named_by_the_readme_of_its_folder(folder):
    text = (BENCHMARKS / folder / "README.md").read_text()
    names = {path.name for path in (BENCHMARKS / folder).iterdir()} - {"README.md"}
    assert names and all(name in text for name in names), names


def imported(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "benchmarks":
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_imports_point_from_studies_to_common_code():
    seen = 0
    for folder, allowed in (("common", "benchmarks.common."), ("studies", "benchmarks.common.")):
        for path in (BENCHMARKS / folder).glob("*.py"):
            for name in imported(path):
                seen += 1
                assert name.startswith(allowed), f"{path.name} imports {name}"
    assert seen > 20


def test_the_makefile_runs_a_study_that_exists():
    (command,) = re.findall(r"python -m (benchmarks\S*) (\S+)", (ROOT / "Makefile").read_text())
    assert command == ("benchmarks", "speed")
