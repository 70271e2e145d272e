"""The pages of papers: their commands are accepted, their methods exist, and their numbers are those of the files of runs.

They are ``papers.md`` and, under it, ``2018-rudner.md``, ``2020-ashman.md``, ``2020-jankowiak.md``, ``2023-spherical.md`` and ``2024-meng.md``.
"""

import json
import re
import runpy
import shlex
import sys
import warnings
from argparse import ArgumentParser
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean, stdev

import pytest

import pyro_dgp
from benchmarks.studies.report_tables import COLUMNS
from pyro_dgp.comparison.cli import parser
from pyro_dgp.data.letters import letters

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"
RESULTS = BENCHMARKS / "results"
INDEX = ROOT / "docs/papers.md"
PAGES = {path.stem: path for path in sorted((ROOT / "docs/papers").glob("*.md"))}
STUDIES = {path.stem for path in (BENCHMARKS / "studies").glob("*.py")} - {"__init__"}
HEAD = ["here", "command", "measured here"]
NOT_MEASURED, NOT_DRAWN = "not measured", "not drawn"


@dataclass(frozen=True)
class Row:
    """A row of a page."""

    page: str
    what: str
    here: str
    command: str
    measured: str
    published: str


def without_links(text):
    return re.sub(r"\[([^]]+)\]\([^)]+\)", r"\1", text)


def rows_of(page):
    found = []
    for line in PAGES[page].read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and cells[1:4] != HEAD and not line.startswith("|---"):
            assert len(cells) == 6, line
            found.append(Row(page, *cells[:3], *(without_links(cell) for cell in cells[3:5])))
    return found


ROWS = [row for page in PAGES for row in rows_of(page)]
COMMANDS = sorted({command for row in ROWS for command in re.findall(r"`([^`]+)`", row.command)})


def test_there_are_five_pages_of_one_form():
    assert len(PAGES) == 5 and len(ROWS) > 200
    for page, path in PAGES.items():
        text = path.read_text()
        assert f"papers/{path.name}" in INDEX.read_text() and "(../papers.md#how-to-read-the-tables)" in text
        assert all(row.what and row.measured and row.published for row in rows_of(page)), page


def test_the_index_counts_the_rows():
    for page in PAGES:
        rows = rows_of(page)
        missing, drawings = (sum(row.measured == none for row in rows) for none in (NOT_MEASURED, NOT_DRAWN))
        counts = f"| {len(rows)} | {len(rows) - missing - drawings} | {missing} | {drawings} |"
        (line,) = [line for line in INDEX.read_text().splitlines() if f"papers/{page}.md" in line]
        assert line.endswith(counts), f"{page}: {counts}"


def test_methods_and_classes_exist():
    named = {(row.page, name) for row in ROWS for name in re.findall(r"`([^`]+)`", row.here)}
    unknown = {(page, name) for page, name in named if name not in {*pyro_dgp.METHODS, *pyro_dgp.__all__, *COLUMNS}}
    assert named and unknown <= {("2024-meng", "letters")}, unknown
    assert callable(letters)


class AcceptedError(Exception):
    """The options were parsed."""


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_are_accepted(command, monkeypatch):
    program, *options = shlex.split(command)
    if "(" in program:
        names = re.findall(r"(?<![\w.\"])([A-Za-z_]\w*)[(\[]", command)
        assert names and set(names) <= {*pyro_dgp.__all__, "render_model", "replace"}, names
        return
    if program == "pyro-dgp":
        arguments = parser().parse_args(options)
        known = pyro_dgp.PRESETS[arguments.preset].methods if arguments.preset else pyro_dgp.METHODS
        assert set(arguments.methods.split(",")) <= set(known)
        return
    if program == "python":
        (_, module, *options) = options
        assert module == "benchmarks", command
    else:
        assert program in STUDIES, command
        module = f"benchmarks.studies.{program}"
        source = (BENCHMARKS / "studies" / f"{program}.py").read_text()
        for name in options[options.index("--methods") + 1].split(",") if "--methods" in options else []:
            assert name in {*pyro_dgp.METHODS, *COLUMNS} or f'"{name}"' in source, name

    def accepted(self, *args):
        self.allow_abbrev = False
        assert not self.parse_known_args(options)[1], "unknown options"
        raise AcceptedError

    monkeypatch.setattr(sys, "argv", [module, *options])
    monkeypatch.setattr(ArgumentParser, "parse_args", accepted)
    with warnings.catch_warnings(), pytest.raises(AcceptedError):
        warnings.simplefilter("ignore", RuntimeWarning)  # the module was imported before
        runpy.run_module("benchmarks.__main__" if module == "benchmarks" else module, run_name="__main__")


def runs(name, **wanted):
    """Runs of a file with these values, without those that failed."""
    found = [json.loads(line) for line in (RESULTS / f"{name}.jsonl").read_text().splitlines()]
    done = [run for run in found if not isinstance(run.get("error"), str)]
    return [run for run in done if all(run[key] == value for key, value in wanted.items())]


def each(name, score, methods, sign=1, **wanted):
    """Mean score of each method."""
    return [sign * mean(run[score] for run in runs(name, method=method, **wanted)) for method in methods]


def over_sets(name, score, methods, **wanted):
    """Mean over data sets of the means over their splits, for each method."""
    found = defaultdict(lambda: defaultdict(list))
    for run in runs(name, **wanted):
        found[run["method"]][run["dataset"]].append(run[score])
    return [mean(mean(values) for values in found[method].values()) for method in methods]


def ahead(name, score, other, **wanted):
    """By how much ``dspp`` is ahead of another method, in the mean over data sets."""
    theirs, ours = over_sets(name, score, [other, "dspp"], **wanted)
    return [theirs - ours]


def ranks(name, score, methods, **wanted):
    """Average rank of methods over the pairs of data set and split that have runs of all."""
    pairs = defaultdict(dict)
    for run in runs(name, **wanted):
        pairs[run["dataset"], run["split"]][run["method"]] = run[score]
    whole = [pair for pair in pairs.values() if set(methods) <= set(pair)]
    places = [[sum(pair[other] <= pair[method] for other in methods) for method in methods] for pair in whole]
    return [mean(column) for column in zip(*places, strict=True)]


def errors_of_letters(points):
    """Mean test error of 1 to 4 layers, percent."""
    found = runs("amortized_letters", experiment="table", inducing=points)
    return [mean(run["error"] for run in found if run["layers"] == layers) for layers in (1, 2, 3, 4)]


def errors_of_flights(method):
    """Errors of repeat 0 by number of rows."""
    return [*(each("inter_domain", "mse", [method], rows=rows, repeat=0)[0] for rows in (10_000, 1_000_000, 5_929_413))]


def ratio(rows, one, other):
    """Mean over repeats of the ratio of the errors of two methods."""
    ours, theirs = (
        {run["repeat"]: run["mse"] for run in runs("inter_domain", rows=rows, method=name)} for name in (one, other)
    )
    return [mean(ours[repeat] / theirs[repeat] for repeat in ours.keys() & theirs.keys())]


@dataclass(frozen=True)
class Again:
    """Numbers of a row that are made of a file of runs again.

    :ivar start: how the row begins.
    :ivar numbers: makes the first numbers of the row, in their order.
    :ivar decimals: to which they are given.
    :ivar table: which of the rows of the page that begin so it is.
    """

    page: str
    start: str
    numbers: Callable[[], list[float]]
    decimals: int = 3
    table: int = 0

    @property
    def row(self):
        return [row for row in rows_of(self.page) if row.what.startswith(self.start)][self.table]


RULES, FIVE = ["dspp-qr1", "dspp-qr2", "dspp"], ["od-svgp", "ppgpr", "dsvi", "gamma-dgp", "dspp"]
AMORTIZED = ["avdgp-ar1", "avdgp-ar2", "avdgp-ar2p", "avdgp-ar2pp"]
guides = partial(each, "amortized_guides", experiment="meng")
ranking = partial(ahead, "predictive_losses", "nll", experiment="ranking")
two_targets = partial(ahead, "several_outputs", "nll_per_output")
spherical = partial(over_sets, "spherical_features")
in_time = partial(each, "given_time", methods=["dsvi"])


def report(dataset, method, score, sign):
    """Mean of a score over the splits of the report's tables, and its standard deviation if they are several."""
    values = [sign * run[score] for run in runs("report_tables", method=method, dataset=dataset)]
    return [mean(values), stdev(values)] if len(values) > 1 else values


def both_studies(dataset, method, score, sign):
    """What the report's tables have, then the mean of ``dsvi`` in a given time."""
    return [*report(dataset, method, score, sign), *in_time(score, sign=sign, dataset=dataset)]


SCORES = ("NLL", "RMSE", "CRPS")
RANKS = [
    Again(page, f"{start}{name}", partial(ranks, file, name.lower(), methods, experiment=experiment), 2)
    for page, start, file, methods, experiment in (
        ("2020-jankowiak", "Table 1, ", "predictive_losses", RULES, "rules"),
        ("2020-jankowiak", "Table 2, ", "predictive_losses", FIVE, "ranking"),
        ("2024-meng", "Table 1, rank of ", "amortized_guides", AMORTIZED[:3], "meng"),
    )
    for name in SCORES
]
JANKOWIAK = [
    Again("2020-jankowiak", f"Section 5.{section}, DSPP ahead of {name}", partial(difference, method), 2)
    for section, difference in ((2, ranking), (3, two_targets))
    for name, method in (("DGP", "dsvi"), ("PPGPR", "ppgpr"))
]
MENG = [
    *(Again("2024-meng", f"Table 2, {m} points", partial(errors_of_letters, m), 2) for m in (16, 32, 64)),
    Again("2024-meng", "Bike, RMSE, AR1", partial(guides, "rmse", AMORTIZED, dataset="bike")),
    Again("2024-meng", "Protein, NLL, AR2P", partial(guides, "nll", AMORTIZED[2:], dataset="protein")),
    Again("2024-meng", "Wine, AR1", partial(guides, "nll", AMORTIZED, dataset="wine_red")),
]
RUDNER = [
    *(
        Again("2018-rudner", start, partial(errors_of_flights, method))
        for start, method in (
            ("DSVI DGP", "dsvi"),
            ("SVGP", "svgp"),
            ("VFF, ", "vff"),
            ("additive prior", "additive points"),
            ("inter-domain DGP", "id-dgp"),
        )
    ),
    *(
        Again("2018-rudner", f"Table 1, {start}", partial(ratio, 10_000, one, other))
        for start, one, other in (
            ("inter-domain DGP over VFF", "id-dgp", "vff-collapsed"),
            ("inter-domain DGP over SVGP", "id-dgp", "svgp"),
            ("DSVI DGP over SVGP", "dsvi", "svgp"),
        )
    ),
]
SPHERICAL = [
    Again("2023-spherical", start, partial(spherical, name, methods))
    for start, name, methods in (
        ("SVGP", "nll", ["points.M", "points.2M"]),
        ("SOLVE-GP", "nll", ["points.M+K"]),
        ("proposed, ReLU", "nll", ["relu-published.M+K"]),
        ("Fig. 8, RMSE of points", "rmse", ["points.M", "points.2M", "points.M+K"]),
        ("Fig. 8, RMSE of ReLU", "rmse", ["relu.M", "relu.2M", "relu.M+K"]),
        ("Fig. 8, RMSE of softplus", "rmse", [f"softplus-published.{size}" for size in ("M", "2M", "M+K")]),
        ("Fig. 8, RMSE of erf", "rmse", ["erf.M", "erf.2M", "erf.M+K"]),
    )
]
ASHMAN = [
    Again("2020-ashman", "boston, SGP 100", partial(report, "boston", "svgp-100", "nll_original", -1)),
    Again("2020-ashman", "boston, PBP", partial(report, "boston", "pbp", "nll_original", -1)),
    Again("2020-ashman", "AEP, 2 layers", partial(report, "energy", "aep-2", "nll_original", -1)),
    Again("2020-ashman", "DSVI, 2 layers", partial(in_time, "nll_original", sign=-1, dataset="energy")),
    Again("2020-ashman", "energy, DSVI 2", partial(in_time, "rmse_original", dataset="energy")),
    *(
        Again("2020-ashman", f"{dataset}, DSVI {n}", partial(both_studies, dataset, f"dsvi-{n}", *score), decimals, i)
        for dataset, n, digits in (("kin8nm", 2, 3), ("power", 3, 2), ("protein", 3, 2))
        for i, (score, decimals) in enumerate(((("nll_original", -1), 3), (("rmse_original", 1), digits)))
    ),
]
AGAIN = [*RANKS, *JANKOWIAK, *MENG, *RUDNER, *SPHERICAL, *ASHMAN]


def numbers_in(text):
    return re.findall(r"(?<![\w.])-?\d+\.\d+", text)


@pytest.mark.parametrize("again", AGAIN, ids=lambda again: f"{again.page}, {again.start}")
def test_numbers_are_those_of_the_files(again):
    numbers, expected = [float(number) for number in numbers_in(again.row.measured)], again.numbers()
    assert len(numbers) >= len(expected) > 0
    for number, value in zip(numbers, expected, strict=False):
        assert abs(number - value) <= 0.5 * 10.0**-again.decimals + 1e-9, (number, value)


def test_other_numbers_stand_in_the_tables_of_the_benchmarks():
    """A number is in a README of the benchmarks, which tests of these hold, or was made again above."""
    known = {n for name in ("results", "studies") for n in numbers_in((BENCHMARKS / name / "README.md").read_text())}
    made_again = [again.row for again in AGAIN]
    for row in ROWS:
        for number in [] if row in made_again else numbers_in(row.measured):
            signs = {number, f"-{number}", number.removeprefix("-")}  # a log-likelihood is minus an NLL
            assert signs & known, (row.page, row.what, number)
