"""A method's fit in the units of the data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor, nn

from pyro_dgp.comparison.method_functions import MethodFunctions
from pyro_dgp.data.arrays import as_array, in_order, numbered
from pyro_dgp.data.dataset import by_output
from pyro_dgp.data.splitting import Scaler
from pyro_dgp.diagnosis.subject import Rows, Subject, subject_of
from pyro_dgp.functions.draws import draw_functions
from pyro_dgp.functions.fits import functions_of
from pyro_dgp.guides.variational import Variational
from pyro_dgp.prediction.prediction import Prediction
from pyro_dgp.prediction.rescaled import RescaledPrediction, default_dtype
from pyro_dgp.zoo.predictors import Predictor


@dataclass(frozen=True)
class MethodFit:
    """One method's fit, of the first fold if there are several: it takes and predicts values in the data's own units.

    :ivar name: of the method.
    :ivar predictor: from inputs as the model takes them to a prediction of the target as the model was trained on it.
    :ivar inputs: map from inputs in their own units to those of the model, and ``target`` the same for the targets.
    :ivar like: a tensor of the dtype and on the device of the fit.
    :ivar columns: names of the inputs, if they have any, and ``target_name``.
    :ivar outputs: names of the outputs, if there are several.
    :ivar labels: names of the classes, if the target was one of words: class c is ``labels[c]``.
    :ivar seed: of predictions: the same inputs have the same prediction.
    :ivar draws: posterior draws by site ``(chains, draws, ...)``; empty for methods that are no samplers.
    :ivar sample_stats: figures of each draw by name ``(chains, draws)``.
    :ivar remarks: sentences on how the fit went, as :func:`~pyro_dgp.compare` says them.
    """

    name: str
    predictor: Callable[[Tensor], Prediction]
    _: KW_ONLY
    inputs: Scaler
    target: Scaler
    like: Tensor
    columns: tuple[str, ...] = ()
    target_name: str = "y"
    labels: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    seed: int = 0
    draws: dict[str, Tensor] = field(default_factory=dict)
    sample_stats: dict[str, np.ndarray] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()

    @property
    def model(self) -> nn.Module:
        """The fitted model."""
        model: nn.Module = self._part("model")
        return model

    @property
    def guide(self) -> Variational:
        """The fitted guide, for methods that have one."""
        guide: Variational = self._part("guide")
        return guide

    def _part(self, name: str) -> Any:
        if not hasattr(self.predictor, name):
            raise ValueError(f"the method {self.name!r} has no {name}")
        return getattr(self.predictor, name)

    def predict(self, x: Any) -> RescaledPrediction:
        """The predictive distribution of y, in its own units, at inputs in theirs.

        :param x: inputs ``(N, D)``: an array, a tensor, or a table, whose columns are taken by name where training had names.
        :raises ValueError: for inputs of another shape, or NaN or infinity among them.
        """
        values = in_order(x, self.columns)
        if values.ndim != 2 or values.shape[1] != len(self.inputs.mean) or not len(values):
            raise ValueError(
                f"{self.name!r} was fitted to inputs of {len(self.inputs.mean)} columns and the new ones have shape {values.shape}: "
                f"give (N, {len(self.inputs.mean)}), one row as x[None]"
            )
        if len(wrong := np.argwhere(~np.isfinite(values))):
            row, column = wrong[0]
            name = repr(self.columns[column]) if self.columns else str(column)
            raise ValueError(
                f"the new inputs hold NaN or infinity, first in row {row} of column {name}: drop or fill such rows"
            )
        ready = torch.as_tensor(self.inputs(values)).to(self.like)
        with default_dtype(self.like.dtype), torch.random.fork_rng():
            torch.manual_seed(self.seed)
            prediction = self.predictor(ready)
        return RescaledPrediction(
            prediction,
            shift=torch.as_tensor(self.target.mean),
            scale=torch.as_tensor(self.target.scale),
            like=self.like,
            outputs=self.outputs,
            labels=self.labels,
        )

    def draw_functions(self, num_draws: int, *, seed: int | None = None) -> MethodFunctions:
        """Draw whole functions, which take inputs in their own units, ``(N, D)``, and give values in those of the target, ``(S, N, D_out)``.

        See :func:`~pyro_dgp.draw_functions`: each draw is one fixed function, without noise. Single functions of a likelihood that has several, such as
        ``y/log_noise``, are drawn in the units of the model, by ``draw_functions(fit.guide, 10, site="y/log_noise")``.

        :param num_draws: number of draws, S.
        :param seed: of the draws; another one each time if not given.
        :raises TypeError: for an inference of your own that gives no :class:`~pyro_dgp.zoo.predictors.Predictor`.
        :raises ValueError: for a posterior whose functions cannot be drawn.
        """
        fit = self._predictor().fit(self.sample_stats)
        with default_dtype(self.like.dtype):
            functions = draw_functions(fit, num_draws, site=None, seed=seed)
        return MethodFunctions(functions, self.inputs, self.target, self.like)

    def _predictor(self) -> Predictor:
        if not isinstance(self.predictor, Predictor):
            raise TypeError(
                f"the inference of {self.name!r} gives no Predictor, so that nothing is known of its fit: take what it was made of"
            )
        return self.predictor


@functions_of.register
def no_functions_of_method(fit: MethodFit, num_draws: int) -> NoReturn:
    """Raise: these are functions of standardised inputs, and those of a method's fit are in the units of the data."""
    raise TypeError(
        f"functions of the fit {fit.name!r} of compare are drawn in the units of the data by its own method: fit.draw_functions({num_draws})"
    )


@subject_of.register
def subject_of_method(fit: MethodFit, rows: Rows) -> Subject:
    """Return what is looked at of a method's fit, at rows in their own units."""
    predictor = fit._predictor()
    x = torch.as_tensor(fit.inputs(in_order(rows.x, fit.columns))).to(fit.like)
    y = torch.as_tensor(fit.target(as_array(numbered(by_output(rows.y, fit.outputs), fit.labels)))).to(fit.like)
    return subject_of(predictor.fit(fit.sample_stats), Rows(x, y, rows.site or getattr(predictor, "site", None)))
