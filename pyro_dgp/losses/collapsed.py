"""The bound on the evidence of regression with the best q(v) of the observed function put in."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Size, Tensor
from torch.utils.checkpoint import checkpoint

from pyro_dgp.gp import FunctionPrior
from pyro_dgp.guides.variational import Variational
from pyro_dgp.internal import linalg
from pyro_dgp.internal.parameters import evaluating, module_local_parameters, modules_of, require_own_parameters
from pyro_dgp.internal.rows import num_rows
from pyro_dgp.internal.training_step import require_weight_of_all_rows
from pyro_dgp.internal.whole_numbers import whole_number
from pyro_dgp.losses.single_regression import Regression, minus_bound, process_of, regression_of, set_best
from pyro_dgp.processes.basis import Basis

#: Rows whose columns are in memory at a time: where there are more, those of each block are made a second time for its gradient.
ROWS = 10_000
#: Draws of hidden functions that the best q(v) is set by at most, and the number of rows times draws where rows are many.
DRAWS, ROWS_DRAWN = 10, 50_000
#: Rows of a step in units of the size of the basis, at least.
FEWEST_ROWS = 2


class _Solved(NamedTuple):
    """Parts of the bound.

    :ivar regression: the Gaussian process, its noise and its targets.
    :ivar rows: number of rows that they stand for.
    :ivar factor: factor of B, ``(..., D_out or E, M, M)``.
    :ivar products: ``A r / s``, ``(..., D_out, M)``.
    :ivar rest: ``sum_n r_n^2 + k(x_n, x_n) - a_n' a_n``, ``(..., D_out)``.
    """

    regression: Regression
    rows: int
    factor: Tensor
    products: Tensor
    rest: Tensor


class CollapsedELBO(torch.nn.Module):
    """Minus the evidence lower bound of GP regression with the best q(v) of the observed function, nats in total (Titsias 2009, Eq. 9).

    With whitened columns A ``(M, N)`` of all rows, residuals ``r = y - m(x)``, noise variance s and ``B = I + A A' / s`` the bound of one layer is

    ``log N(r | 0, A'A + s I) - (sum_n k(x_n, x_n) - tr A'A) / (2 s)``

    summed over outputs, and the best q(v) is ``N(B^-1 A r / s, B^-1)``. A call costs O(N M^2) and has no random numbers, so that
    :func:`~pyro_dgp.fit_lbfgs` minimises it; :func:`~pyro_dgp.fit_collapsed` does that and sets q(v). GPflow's and Pyro's name for such a fit is SGPR.

    In a deep GP the inputs of the top layer are hidden functions, and ``A A'``, ``A r`` and the sums over rows are means over their draws, or over
    the sigma points of the guide. This is the ELBO of :class:`~pyro_dgp.ELBO` with the same components, at the q(v) of the top layer that is best for them; the KL of hidden layers
    is subtracted. With S draws for each of N rows, q(v) is the best one of N S draws, which is a little too good for them: the estimate is above
    the bound by at most about ``M / (2 S N)`` nats a row.

    It takes any family whose q(v) has a full covariance in the observed function: :class:`~pyro_dgp.InducingPoints`, whose inputs are trained too, or features. Features that
    hyperparameters do not change need one pass over the data alone: :class:`~pyro_dgp.CollapsedELBOFromSums`. Hidden layers have any family.

    :param guide: an initialised guide; its q(v) of the observed function is not read.
    :param num_data: size of the whole training set where a step has some of its rows. Sums over these rows then stand for all, and q(v) is best for
        them alone, so that the bound of a step is too high by about ``M / (2 rows)`` nats a row: take thousands, as many in the last step of an epoch. Fewer than 2 M are refused. All rows are passed if not given.

    >>> import torch
    >>> from pyro_dgp import CollapsedELBO, DeepGP, InducingPoints, Variational, fit_lbfgs, predict
    >>> x = torch.linspace(0, 1, 100)[:, None]
    >>> y = torch.sin(9 * x[:, 0]) + 0.1 * torch.randn(100)
    >>> guide = Variational(DeepGP(x, layers=1), InducingPoints(10))
    >>> guide.initialize(x, y)
    >>> objective = CollapsedELBO(guide)
    >>> result = fit_lbfgs(objective, x, y)
    >>> objective.settle(x, y)
    >>> bool((predict(guide, x).mean - torch.sin(9 * x[:, 0])).abs().mean() < 0.05)
    True
    """

    def __init__(self, guide: Variational, num_data: int | None = None) -> None:
        super().__init__()
        guide.require_initialized()
        self.num_data = None if num_data is None else whole_number("num_data", num_data, 1)
        self.guide, self.model = guide, guide.model
        if not isinstance(guide.model, torch.nn.Module):
            self.model_modules = torch.nn.ModuleList(guide.model_modules)

    @property
    def needs_all_rows(self) -> bool:
        """Whether a step has all rows, which :func:`~pyro_dgp.fit` asks."""
        return self.num_data is None

    def forward(self, x: Tensor, y: Tensor, **arguments: Any) -> Tensor:
        """Return minus the bound.

        :param x: inputs of all rows, or of those of a step where ``num_data`` is given.
        :param y: their targets.
        :param arguments: further arguments of the model.
        :raises ValueError: for a model that observes more than one Gaussian process, or in another way than under Gaussian noise.
        """
        require_weight_of_all_rows(type(self).__name__, ((x, y), arguments), self.num_data)
        require_own_parameters(*modules_of(self.model))
        if self.num_data not in (None, num_rows(x)) and self.guide.structure.joins_data_rows:
            raise ValueError(
                f"num_data={self.num_data} cannot weight the {num_rows(x)} rows of a step, since a part of the model joins rows of function values, which a batch of "
                "some rows changes: pass all rows in every step, and leave num_data out"
            )
        found, rows, factor, products, rest = self._solved(x, y, arguments)
        bound = minus_bound(rows, found.noise.double(), rest, factor=factor, products=products)
        return bound + found.regularizer

    @torch.no_grad()
    def settle(self, x: Tensor, y: Tensor, **arguments: Any) -> None:
        """Set q(v) of the observed function to the best one at these hyperparameters, for the rows and the arguments of a call, which are all rows or stand for ``num_data``.

        Networks are in evaluation mode for that, as they are where predictions are made. Hidden functions have ten draws, or as few as make 50,000 rows times draws. :func:`~pyro_dgp.fit` and
        :func:`~pyro_dgp.fit_lbfgs` call it at their end.
        """
        modules = modules_of(self.model)
        with module_local_parameters(*modules, self.guide), evaluating(*modules):
            solved = self._solved(x, y, arguments, draws=max(1, min(DRAWS, ROWS_DRAWN // num_rows(x))))
        set_best(process_of(self.guide, solved.regression.key), solved.factor, solved.products)

    def _solved(self, x: Tensor, y: Tensor, arguments: dict[str, Any], *, draws: int | None = None) -> _Solved:
        propagation = None if draws is None else self.guide.propagation.for_prediction(draws)
        found = regression_of(self.guide, x, y, arguments, propagation=propagation)
        prior = found.prior
        process = process_of(self.guide, found.key)
        rows = num_rows(x)
        _require_all_rows(found, rows, process.present_groups)
        basis: Basis = process.basis
        if self.num_data not in (None, rows) and rows < FEWEST_ROWS * basis.size:
            raise ValueError(
                f"a step has {rows} of {self.num_data} rows, and the best q(v) of {basis.size} coefficients would fit these alone: take thousands of rows in each step, the last one too"
            )
        residuals = found.values - prior.mean.mT
        gram, products = (found.average(each) for each in _sums(basis, prior, residuals))
        of_prior = found.average(residuals.double().square().sum(-1) + prior.variance.double().sum(-2))
        rest = of_prior - gram.diagonal(dim1=-2, dim2=-1).sum(-1)
        share = 1.0 if self.num_data is None else self.num_data / rows
        noise = found.noise.double()
        whole = gram * (share / noise[..., None, None])
        factor = linalg.cholesky(linalg.identity(whole) + whole, 0.0, prior.name)
        return _Solved(found, round(share * rows), factor, products * (share / noise[..., None]), share * rest)


def _sums(basis: Basis, prior: FunctionPrior, residuals: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``A A'`` ``(..., E, M, M)`` and ``A r`` ``(..., D_out, M)``, in double precision."""

    def of_block(x: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        columns = basis.columns(prior.at(x)).double()
        return columns @ columns.mT, (columns @ values.double().unsqueeze(-1)).squeeze(-1)

    blocks = list(zip(prior.x.split(ROWS, -2), residuals.split(ROWS, -1), strict=True))
    if len(blocks) == 1:
        return of_block(*blocks[0])
    made = [checkpoint(of_block, *block, use_reentrant=False) for block in blocks]
    return torch.stack([gram for gram, _ in made]).sum(0), torch.stack([products for _, products in made]).sum(0)


def _require_all_rows(found: Regression, rows: int, groups: Size) -> None:
    """Raise where the Gaussian process sees other rows than those of the data, or other groups than those of the guide."""
    prior, values = found.prior, found.values
    if not found.groups == groups == values.shape[:-2]:
        raise ValueError(
            f"the guide holds functions of {prior.name!r} for groups of shape {tuple(groups)}, the model has them of shape {tuple(found.groups)}, and the "
            f"targets of shape {tuple(values.shape[:-2])}: pass the inputs and targets of the groups of guide.initialize"
        )
    if not prior.x.shape[-2] == values.shape[-1] == rows:
        raise ValueError(
            f"the collapsed bound is that of all rows, and {prior.name!r} sees {prior.x.shape[-2]} of {rows}: take a plate that takes some at "
            "random out of the model, or train by ELBO"
        )
