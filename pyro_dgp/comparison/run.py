"""The comparison: methods on one data set, each from a copy of the untrained model, scored alike."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from pyro_dgp.comparison.files import (
    Curves,
    Row,
    atomically,
    finished_rows,
    make_folder,
    read_curves,
    save_arrays,
    write_table,
)
from pyro_dgp.comparison.gap_study import GapResult, GapStudy
from pyro_dgp.comparison.keep import load_fit, save_fit
from pyro_dgp.comparison.lengthening import Lengthening
from pyro_dgp.comparison.method_fit import MethodFit, as_array, in_order
from pyro_dgp.comparison.one_method import Outcome, Untrained, arviz_of, run_method
from pyro_dgp.comparison.own_model import own_model
from pyro_dgp.comparison.parts import with_test_rows
from pyro_dgp.comparison.plan import Plan, plan_of, torch_defaults
from pyro_dgp.comparison.request import Named, Request, Say, check, default_methods, is_made_by_hand, no_progress
from pyro_dgp.comparison.results import ComparisonResult
from pyro_dgp.data.dataset import Dataset, numbered_outputs
from pyro_dgp.data.dataset import check as check_data
from pyro_dgp.data.named import load_default
from pyro_dgp.data.tasks import Task
from pyro_dgp.internal.progress import Progress
from pyro_dgp.likelihoods import NOISE_FLOOR
from pyro_dgp.zoo.method import Method
from pyro_dgp.zoo.settings import Settings

#: Gives the progress callback of a method, by its name.
Progresses = Callable[[str], Progress]


class MethodFailedError(RuntimeError):
    """A method stopped with a numerical error.

    :ivar result: what the other methods gave.
    """

    def __init__(self, message: str, result: ComparisonResult) -> None:
        super().__init__(message)
        self.result = result


def compare(
    model: Any,
    x: Any,
    y: Any,
    *,
    methods: Sequence[Named] | None = None,
    test: tuple[Any, Any] | None = None,
    settings: Settings = Settings(),
    split: int | None = None,
    seed: int | None = None,
    folds: int | None = None,
    standardize: bool = True,
    output: Path | str | None = None,
    resume: bool = False,
    name: str = "data",
    dtype: str = "float64",
    device: str = "auto",
    threads: int | None = None,
    say: Say = print,
    progress: Progresses = no_progress,
) -> ComparisonResult:
    """Fit several methods to one model and one data set, and score them on the same held-out rows.

    >>> import numpy as np
    >>> from pyro_dgp.models.deep_gp import DeepGP
    >>> x = np.linspace(0, 10, 40)[:, None]
    >>> toy = Settings(inducing=5, samples=2, epochs=1)
    >>> result = compare(lambda x: DeepGP(x, 2, 1), x, np.sin(x[:, 0]), methods=["dsvi"], settings=toy, say=lambda sentence: None)
    >>> result["dsvi"].predict(x[:3]).mean.shape
    torch.Size([3])

    :param model: a factory that is called with the (standardised) training inputs ``(N, D)`` and returns a model, such as the class of
        the model; or a model object, with ``test``; or nothing for the model of each method in the table.
    :param x: inputs ``(N, D)`` in their own units, an array or a tensor.
    :param y: targets ``(N,)`` in their own units.
    :param methods: names of the table (``pyro-dgp methods``), or pairs ``(name, inference)``, mixed freely; a few if not given.
    :param test: inputs and targets of the test rows. If not given, a tenth of the rows is held out.
    :param split: number of that tenth, and the seed of folds and validation rows; that of the settings if not given.
    :param seed: of everything random; that of the settings if not given.
    :param folds: number of folds of a cross-validation, whose scores are pooled over all rows, see
        :func:`~pyro_dgp.comparison.one_method.pooled_scores`.
    :param standardize: whether inputs and targets are standardised by the statistics of the training rows.
    :param output: folder for ``results.json``, the figure, an ArviZ file for each method and the fits; nothing is written if not given.
    :param resume: methods that the folder has results for are not run again; a sampler that is asked for more draws adds them to its chains.
    :param name: of the data, in table and figure.
    :param say: gets every remark, a sentence each.
    :param progress: gives the progress callback of a method, by its name.
    :raises ValueError: for bad input, and for a method that cannot fit the model, before training starts.
    :raises MethodFailedError: at the end, if methods stopped with a numerical error.
    """
    _check_kinds(methods, settings, progress)
    own = None if model is None else own_model(model)
    columns = tuple(str(column) for column in getattr(x, "columns", ()))
    dataset = _of_outputs(Dataset(name, as_array(x), as_array(y), columns=columns), y)
    if test is not None:
        if folds is not None:
            raise ValueError("test= and folds= are two ways to choose the test rows: give one of them")
        check_data(dataset)
        dataset = with_test_rows(dataset, *_test_rows(test, dataset))
    elif own is not None and own.is_object:
        raise ValueError(
            "a model object was made for certain training rows: give the others as test=(x_test, y_test), or a factory that makes it"
        )
    number = 0 if test is not None else settings.split if split is None else split
    settings = replace(settings, split=number, seed=settings.seed if seed is None else seed)
    request = Request(
        output=None if output is None else Path(output),
        dataset=dataset,
        methods=default_methods(own) if methods is None else tuple(methods),
        settings=settings,
        model=own,
        folds=folds,
        standardize=standardize,
        dtype=dtype,
        device=device,
        threads=threads,
        resume=resume,
    )
    return run(request, say=say, progress=progress)


def _check_kinds(methods: Any, settings: Any, progress: Any) -> None:
    """Raise for arguments of another kind, which would be misread later."""
    if isinstance(methods, str):
        raise TypeError(f"methods is a list of names: write methods=[{methods!r}]")
    if not isinstance(settings, Settings):
        raise TypeError(f"settings is a Settings object, such as Settings(epochs=50), not {settings!r}")
    if not callable(progress):
        raise TypeError(f"progress is a function from the name of a method to its callback, not {progress!r}")


def _test_rows(test: Any, dataset: Dataset) -> tuple[Any, Any]:
    if not isinstance(test, tuple) or len(test) != 2:
        raise TypeError("test is a pair of arrays: test=(x_test, y_test)")
    x, y = in_order(test[0], dataset.columns), as_array(test[1])
    if x.ndim != 2 or x.shape[1] != dataset.x.shape[1] or y.shape != (len(x), *dataset.y.shape[1:]) or not len(x):
        wanted = "(N,)" if dataset.y.ndim == 1 else f"(N, {dataset.y.shape[1]})"
        raise ValueError(
            f"the test rows have inputs {x.shape} and targets {y.shape}: they must be (N, {dataset.x.shape[1]}) and {wanted}, N at least 1"
        )
    return x, y


def run(request: Request, *, say: Say = print, progress: Progresses = no_progress) -> ComparisonResult:
    """Run what is asked for, and write ``results.json``, ``METHOD.nc``, the fits and ``comparison.png`` if there is a folder.

    Everything is checked before anything is trained or written. What has finished is kept if the rest is interrupted.

    :raises ValueError: for bad input, before training starts.
    :raises MethodFailedError: at the end, if methods stopped with a numerical error.
    """
    check(request)
    dataset = request.dataset or load_default()
    check_data(dataset)
    config, output = request.config(dataset), request.output
    longer, found = Lengthening(request, config), list[Row]()
    if output is not None and request.resume:
        found = finished_rows(output, config, request.inferences(), allows=longer.allows)
    rows = longer.staying(found)
    with torch_defaults(request):
        plan = plan_of(request, dataset, finished=rows, say=say)
        if output is not None:
            make_folder(output)
            longer.begin(output, found, say)
        _introduce(plan, rows, say)
        comparison = _Run(plan, config, rows, say, progress)
        try:
            comparison.methods()
            comparison.gap()
        finally:
            comparison.close()
    if comparison.failures:
        failures = "; ".join(f"{name} failed: {error}" for name, error in comparison.failures.items())
        raise MethodFailedError(failures, comparison.result)
    return comparison.result


def _of_outputs(dataset: Dataset, y: Any) -> Dataset:
    """A data set with the names of its outputs, if there are several: those of the table that they come in, or numbers."""
    if dataset.y.ndim != 2 or dataset.y.shape[1] < 2:
        return dataset
    names = tuple(map(str, getattr(y, "columns", ()))) or numbered_outputs(dataset.y.shape[1])
    return replace(dataset, outputs=names, target=", ".join(names), task=Task(outputs=len(names)))


def _introduce(plan: Plan, finished: Sequence[Row], say: Say) -> None:
    """Say what is compared on what."""
    name, part = plan.dataset.name, plan.parts[0]
    folds = "" if len(plan.parts) == 1 else f", the first of {len(plan.parts)} folds"
    say(
        f"{name}: {len(part.x_train)} training rows, {len(part.x_test)} test rows, {part.x_train.shape[1]} inputs{folds}"
    )
    if plan.request.model is None and plan.dataset.task.is_standardized:
        unit = "of the standardised target's" if plan.request.standardize else "in squared units of the target"
        say(f"the noise variance of every method stays above {NOISE_FLOOR:g} {unit}")
    for row in finished:
        say(f"{row['method']}: finished before, not run again")


class _Run:
    """A comparison as far as it has come."""

    def __init__(self, plan: Plan, config: dict[str, Any], finished: list[Row], say: Say, progress: Progresses) -> None:
        self.plan, self.config, self.say, self.progress = plan, config, say, progress
        self.failures: dict[str, Exception] = {}
        self.output = plan.request.output
        curves: dict[str, Curves] = {}
        fits: dict[str, Callable[[], MethodFit]] = {}
        if self.output is not None:
            curves = {row["method"]: read_curves(self.output, row["method"]) for row in finished}
            fits = {row["method"]: partial(self._loaded, row["method"]) for row in finished}
        self.result = ComparisonResult(
            list(finished),
            curves,
            plan.dataset.name,
            input_axis=plan.input_axis,
            target_axis=plan.target_axis,
            scores_on=plan.scores_on,
            fits=fits,
            measure=self._measure,
        )

    def methods(self) -> None:
        """Run every method of the plan; one that stops with a numerical error leaves the others."""
        untrained = [Untrained(part, self.plan.settings) for part in self.plan.parts]
        for method in self.plan.methods:
            chains = None if self.output is None else self.output / f".{method.name}"
            try:
                outcome = run_method(method, self.plan, untrained, chains=chains, say=self.say, progress=self.progress)
                self._keep(method, outcome)
            except (RuntimeError, ValueError) as error:
                self.say(f"{method.name} failed: {error}")
                self.failures[method.name] = error
                continue
            if chains is not None and not outcome.first.fitted.draws:  # draws can be added to chains
                shutil.rmtree(chains, ignore_errors=True)

    def _keep(self, method: Method, outcome: Outcome) -> None:
        """Add a method to the result, and write its files, then the table that names it."""
        settings, name = self.plan.settings, method.name
        head = {"method": name, "dataset": self.plan.dataset.name, "split": settings.split, "seed": settings.seed}
        inference = self.plan.request.inferences().get(name)
        made_by_hand = {} if inference is None else {"inference": inference}
        row = head | outcome.row | made_by_hand | {"config": self.config}
        if self.output is not None:
            data = arviz_of(outcome.first)
            atomically(self.output / f"{name}.nc", lambda path: data.to_netcdf(str(path)))
            atomically(self.output / f"{name}.npz", lambda path: save_arrays(path, outcome.curves))
            try:
                save_fit(self.output, outcome.first.fitting, outcome.first.fitted)
            except ValueError as error:
                self.say(f"{name}: its fit is not kept: {error}")
            write_table(self.output, [*self.result.rows, row])
        fit = outcome.first.fitting.fit(outcome.first.fitted)
        self.result.rows.append(row)
        self.result.curves[name] = outcome.curves
        self.result.fits[name] = lambda: fit

    def _loaded(self, name: str) -> MethodFit:
        """The fit of a method that was finished before."""
        assert self.output is not None
        by_hand = {method.name: method.inference for method in self.plan.request.chosen() if is_made_by_hand(method)}
        return load_fit(self.output, name, model=self.plan.request.model, inference=by_hand.get(name))

    def gap(self) -> None:
        """Measure the gap that was asked for, unless the folder has it."""
        study = self.plan.request.study()
        if study is None or (self.output is not None and study.finished(self.output)):
            return
        try:
            gaps = self._gaps(study)
        except (RuntimeError, ValueError) as error:
            self.say(f"the gap failed: {error}")
            self.failures["the gap"] = error
            return
        if self.output is not None:
            gaps.write(self.output)
            shutil.rmtree(self.output / ".gap", ignore_errors=True)

    def _gaps(self, study: GapStudy) -> GapResult:
        part = self.plan.parts[0]
        given = self.plan.given(study.reference, part, self.say)
        folder = None if self.output is None else self.output / ".gap"
        x, y = part.x_train[given], part.y_train[given]
        return study.run(
            x, y, part.x_test, settings=self.plan.settings, progress=self.progress, say=self.say, folder=folder
        )

    def _measure(self, reference: str) -> GapResult:
        """The gap to a sampler, measured when it is asked for."""
        study = self.plan.request.study_of(reference)
        study.check()
        with torch_defaults(self.plan.request):
            gaps = self._gaps(study)
        if self.output is not None:
            shutil.rmtree(self.output / ".gap", ignore_errors=True)
        return gaps

    def close(self) -> None:
        """Draw the figure of what there is; leave no empty folder."""
        if self.output is None:
            return
        if self.result.rows:
            self.result.draw(self.output / "comparison.png")
        elif not any(self.output.iterdir()):
            self.output.rmdir()
