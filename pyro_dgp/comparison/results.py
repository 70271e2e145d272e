"""The result of a comparison."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path

from pyro_dgp.comparison.class_figure import plot_classes
from pyro_dgp.comparison.differences import behind, shown
from pyro_dgp.comparison.figures import STANDARDISED_INPUT, STANDARDISED_TARGET, Axis, plot_comparison
from pyro_dgp.comparison.files import Curves, Row
from pyro_dgp.comparison.gap_study import GapResult
from pyro_dgp.comparison.method_fit import MethodFit
from pyro_dgp.comparison.tables import table
from pyro_dgp.internal.whole_file import write_whole

#: Test rows below which it is said that they are few.
FEW_ROWS = 50


@dataclass(repr=False)
class ComparisonResult:
    """Results of a comparison; ``print`` and a notebook show its table.

    ``result["dsvi"]`` is the :class:`~pyro_dgp.comparison.method_fit.MethodFit` of a method: ``result["dsvi"].predict(x_new).mean`` is
    in the target's own units, and ``.model``, ``.guide`` and ``.draws`` are what was fitted.

    :ivar rows: a row of figures for each method, as in ``results.json``.
    :ivar curves: what the figure shows of each method.
    :ivar dataset: name of the data.
    :ivar scores_on: units of ``nll``, ``rmse`` and ``crps``, for the line under the table.
    :ivar input_axis: name and units of the input, if there is one, and ``target_axis``, those of the target.
    """

    rows: list[Row]
    curves: dict[str, Curves]
    dataset: str
    _: KW_ONLY
    input_axis: Axis = STANDARDISED_INPUT
    target_axis: Axis = STANDARDISED_TARGET
    scores_on: str = "the standardised target"
    fits: dict[str, Callable[[], MethodFit]] = field(default_factory=dict)
    measure: Callable[[str], GapResult] | None = None

    def __str__(self) -> str:
        better = "lower is better"
        if any("accuracy" in row for row in self.rows):
            better = "of NLL (log loss), Brier score and calibration error (ECE) lower is better, of accuracy higher"
        rows = shown(self.rows, self.curves)
        paired = any("behind" in row for row in rows)
        lines = (
            ["behind: NLL minus the lowest, row by row; +-: its standard error over the test rows"] if paired else []
        )
        few = [count for row in rows if (count := row.get("n_test", FEW_ROWS)) < FEW_ROWS]
        if few:
            is_all = any((row.get("folds") or 1) > 1 for row in rows)
            remedy = "folds test every row already" if is_all else "folds=5 (--folds 5) tests every row"
            lines.append(f"{few[0]} test rows rank little: {remedy}")
        return "\n".join([table(rows), *lines, f"scores on {self.scores_on}, {better}"])

    __repr__ = __str__

    def __getitem__(self, method: str) -> MethodFit:
        if method not in self.fits:
            raise KeyError(f"there is no fit of {method!r}: there are {', '.join(self.fits) or 'none'}")
        return self.fits[method]()

    def __iter__(self) -> Iterator[str]:
        return iter(self.fits)

    def __len__(self) -> int:
        return len(self.rows)

    def behind(self, reference: str | None = None) -> dict[str, tuple[float, float]]:
        """Return, by method, its NLL minus that of another one, nats a row, and the standard error of that over the test rows.

        The differences are taken row by row. A difference of less than two standard errors may be chance, and other seeds and splits add to it.

        :param reference: the other one, which is left out; the method of the lowest NLL if not given. The errors of two methods beside a third cannot be put
            together: to compare two, name one of them.
        :raises KeyError: for a method that the comparison has not.
        """
        if reference is not None and reference not in {row["method"] for row in self.rows}:
            raise KeyError(f"there is no {reference!r}: there are {', '.join(row['method'] for row in self.rows)}")
        return behind(self.rows, self.curves, reference)

    def draw(self, path: Path | str) -> None:
        """Write the figure of the comparison."""

        def draw(temporary: Path) -> None:
            if any("confidence" in curve for curve in self.curves.values()):
                plot_classes(self.rows, self.curves, temporary, self.dataset)
                return
            plot_comparison(
                self.rows,
                self.curves,
                temporary,
                self.dataset,
                input_axis=self.input_axis,
                target_axis=self.target_axis,
            )

        write_whole(Path(path), draw)

    def gap(self, reference: str = "ess") -> GapResult:
        """Fit the deep methods and a sampler to one and the same model and rows, and measure how far they are from it.

        :param reference: the sampler: ``ess``, ``nuts``, or a sampler of this comparison.
        """
        if self.measure is None:
            raise ValueError("this result was not made by compare: there is no model to measure the gap on")
        return self.measure(reference)
