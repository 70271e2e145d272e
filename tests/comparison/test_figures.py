"""The figure: what it shows of results and curves, in units of the data."""

import numpy as np
import pytest
from matplotlib.figure import Figure

from pyro_dgp.comparison import figures
from pyro_dgp.comparison.figures import LEVELS, Axis, name_of, plot_comparison, title_of


def row(method, nll, **more):
    return {"method": method, "n_train": 20, "n_test": 5, "nll": nll, "crps": 0.2, "rmse": 0.3, **more}


def curve(one_input=True):
    x = np.linspace(-1, 1, 5)
    arrays = {"observed": x, "mean": x, "low": x - 1, "high": x + 1, "coverage": LEVELS.numpy()}
    if one_input:
        grid = np.linspace(-2, 2, 30)
        arrays |= {"grid": grid, "grid_mean": grid, "grid_low": grid - 1, "grid_high": grid + 1}
        arrays |= {"grid_low_50": grid - 0.4, "grid_high_50": grid + 0.4}
        arrays |= {"x_train": x, "y_train": x, "x_test": x}
    return arrays


@pytest.fixture
def drawn(monkeypatch):
    """The figures that were saved."""
    saved = []
    monkeypatch.setattr(Figure, "savefig", lambda self, path, **options: saved.append(self))
    return saved


def named(figure, title, loc="center"):
    return next(axis for axis in figure.axes if axis.get_title(loc) == title)


def test_one_input_is_drawn_in_its_own_units_a_row_for_each_method(drawn, tmp_path):
    rows = [row("a", 0.5, folds=2, nll_per_fold=[0.3, 0.7]), row("b", -1.25, folds=2, nll_per_fold=[-1.5, -1.0])]
    pixels, grey = Axis("pixels", 300.0, 100.0), Axis("grey", 128.0, 50.0)
    plot_comparison(rows, {"a": curve(), "b": curve()}, tmp_path / "x", "line", input_axis=pixels, target_axis=grey)
    (figure,) = drawn
    assert (
        "line: b gives held-out rows the highest density, NLL \N{MINUS SIGN}1.25 (a: 0.50)"
        in figure._suptitle.get_text()
    )
    panel = named(figure, "a", "left")
    lines = {line.get_label(): line for line in panel.lines}
    np.testing.assert_allclose(lines["training rows"].get_xdata(), 300 + 100 * np.linspace(-1, 1, 5))
    np.testing.assert_allclose(lines["held-out rows"].get_ydata(), 128 + 50 * np.linspace(-1, 1, 5))
    assert [band.get_label() for band in panel.collections] == ["90 % interval", "50 % interval"]
    assert panel.collections[0].get_datalim(panel.transData).y0 == pytest.approx(128 + 50 * -3)
    assert panel.get_ylim() == pytest.approx((128 - 50 - 20, 128 + 50 + 20))  # the data's range, and a fifth of it
    scores = named(figure, "NLL")
    dots = [line.get_xdata() for line in scores.lines if line.get_marker() == "o"]
    assert [list(np.atleast_1d(x)) for x in dots] == [[0.3, 0.7], [0.5], [-1.5, -1.0], [-1.25]]
    assert scores.get_ylim()[0] > scores.get_ylim()[1]  # the first method is on top, as its bands are


def test_the_title_claims_no_difference_that_the_rows_do_not_show():
    noise = np.random.RandomState(0).randn(3, 100)
    rows = [row("a", 0.5), row("b", -1.25), row("c", -1.24)]
    curves = {"a": {"row_nll": 0.5 + noise[0]}, "b": {"row_nll": -1.25 + noise[1] - noise[1].mean()}}
    clear = curves | {"c": {"row_nll": curves["b"]["row_nll"] + 0.01}}
    level = curves | {"c": {"row_nll": -1.24 + noise[2] - noise[2].mean()}}
    told = title_of(rows, "line", curves=clear).replace("\N{MINUS SIGN}", "-")
    assert told.startswith("line: b gives") and told.endswith("the highest density, NLL -1.25 (a: 0.50)")
    untold = title_of(rows, "line", curves=level).replace("\N{MINUS SIGN}", "-")
    assert untold.endswith("held-out rows do not tell b (NLL -1.25) from c; a: 0.50")
    two = title_of(rows[1:], "line", curves=level).replace("\N{MINUS SIGN}", "-")
    assert two.endswith("do not tell b (NLL -1.25) from c")


def test_chains_win_only_where_they_are_known_to_have_converged():
    chains = {"sound": 1.01, "wandering": 2.3, "lost": np.nan, "unknown": None}
    rows = [row("svgp", 0.5), *(row(name, -1.0, r_hat_max=r_hat) for name, r_hat in chains.items())]
    assert [name_of(each, rows) for each in rows] == [
        "svgp",
        "sound",
        "wandering (not converged)",
        "lost (not converged)",
        "unknown (no R-hat)",
    ]
    for name in ("wandering", "lost", "unknown"):
        alone = [each for each in rows if each["method"] in ("svgp", name)]
        assert title_of(alone, "line") == "line: predictions of 5 held-out rows"
    assert title_of(rows[:2], "line").startswith("line: sound gives")


def test_several_inputs_are_drawn_as_predicted_against_observed(drawn, tmp_path):
    rows = [row(name, number) for number, name in enumerate("abcdef")]
    plot_comparison(rows, {name: curve(False) for name in "abcdef"}, tmp_path / "x", "many")
    (figure,) = drawn
    panels = [axis for axis in figure.axes if axis.get_title() in set("abcdef")]
    assert len(panels) == 6 and len({round(panel.get_position().y0, 2) for panel in panels}) == 2
    assert [label.get_text() for label in named(figure, "NLL").get_yticklabels()] == list("abcdef")
    assert "5 held-out rows" in figure._suptitle.get_text()


def test_rows_that_differ_are_said_and_a_method_alone_is_no_contest(drawn, tmp_path):
    plot_comparison([row("a", 0.1), row("b", np.nan, n_train=7)], {"a": curve(), "b": curve()}, tmp_path / "x", "d")
    assert drawn[0]._suptitle.get_text() == "d: predictions of 5 held-out rows"
    assert named(drawn[0], "b (7 training rows)", "left")


def test_the_file_is_a_picture(tmp_path):
    plot_comparison([row("a", 0.1)], {"a": curve()}, tmp_path / "f.png", "d")
    assert (tmp_path / "f.png").read_bytes().startswith(b"\x89PNG")
    assert figures.SCORES == ("nll", "crps", "rmse")
