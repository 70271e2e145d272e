"""The collapsed bound from sums over the data that are made once, for features that hyperparameters do not change."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass
from typing import Any

import torch
from torch import Tensor

from pyro_dgp.gp import FunctionPrior
from pyro_dgp.guides.variational import Variational
from pyro_dgp.internal import linalg
from pyro_dgp.internal.parameters import module_local_parameters, modules_of, require_own_parameters
from pyro_dgp.losses.single_regression import Regression, minus_bound, process_of, regression_of, set_best
from pyro_dgp.processes import FixedFeatures

Row = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class SufficientStatistics:
    """All that a bound on the evidence needs of the data where the features of a GP do not depend on hyperparameters.

    :ivar rows: number of rows, N.
    :ivar gram: ``sum_n k_u(x_n) k_u(x_n)'``, ``(M, M)``, float64 as all sums are.
    :ivar products: ``sum_n k_u(x_n) y_n``, ``(M,)``.
    :ivar squares: ``sum_n y_n^2``.
    :ivar basis: what the features depend on, the state of the basis that they were made with.
    :ivar example: one row, ``(1, D)`` and ``(1,)``, with which the model is called for its hyperparameters.
    """

    rows: int
    gram: Tensor
    products: Tensor
    _: KW_ONLY
    squares: Tensor
    basis: dict[str, Tensor]
    example: Row

    @staticmethod
    @torch.no_grad()
    def of(guide: Variational, batches: Iterable[Row]) -> SufficientStatistics:
        """Make the sums in one pass over batches of inputs ``(n, D)`` and targets ``(n,)``; memory is that of one batch.

        :param guide: initialised, with :class:`~pyro_dgp.FourierFeatures` for the one Gaussian process of its model.
        :raises ValueError: for a model that has more than one Gaussian process under Gaussian noise, or a row outside of the interval of its
            features.
        """
        guide.require_initialized()
        rows, example = 0, None
        sums: list[Tensor] = []
        state: dict[str, Tensor] = {}
        for x, y in batches:
            require_rows(x, y)
            if not len(x):
                continue
            if example is None:
                _require_fixed(guide, (x[:1], y[:1]))
            with module_local_parameters(*guide.model_modules):
                found = _regression(guide, x, y)
            name, prior = found.key, found.prior
            _require_all_rows(prior, found.values, len(x))
            features = _process(guide, name).basis.features(prior.x, prior.name).double()
            target = found.values[0].double()
            own = (features @ features.mT, features @ target, target @ target)
            sums = [before + more for before, more in zip(sums, own, strict=True)] if sums else list(own)
            if example is None:
                example, state = (x[:1].clone(), y[:1].clone()), _state(guide, name)
            rows += len(x)
        if example is None:
            raise ValueError("there are no rows: give batches of inputs (n, D) and targets (n,)")
        gram, products, squares = sums
        return SufficientStatistics(rows, gram, products, squares=squares, basis=state, example=example)


class CollapsedELBOFromSums(torch.nn.Module):
    """The loss :class:`~pyro_dgp.CollapsedELBO` of one GP from sums over the data, nats in total.

    With whitened columns A of all rows, ``W = A A'``, ``B = I + W / s`` and noise variance s the bound is

    ``log N(y | 0, A'A + s I) - (sum_n k(x_n, x_n) - tr W) / (2 s)``

    and the best q(v) is ``N(B^-1 A y / s, B^-1)``. Both come from :class:`SufficientStatistics`, so that a step costs O(M^3) however many rows
    there are. Call it without arguments. :func:`~pyro_dgp.fit_collapsed` makes the sums, minimises it, and sets q(v).

    :ivar name: the Gaussian process.
    :param guide: an initialised guide whose q(v) has a full covariance; its q(v) is not read.
    :param statistics: sums over the data for this guide.
    :raises ValueError: for a model that it has no closed form for.

    >>> import torch
    >>> from pyro_dgp import CollapsedELBOFromSums, DeepGP, FourierFeatures, SufficientStatistics, Variational
    >>> x, y = torch.rand(100, 1), torch.randn(100)
    >>> guide = Variational(DeepGP(x, layers=1, kernel="matern52-additive"), FourierFeatures(5))
    >>> guide.initialize(x, y)
    >>> objective = CollapsedELBOFromSums(guide, SufficientStatistics.of(guide, [(x[:50], y[:50]), (x[50:], y[50:])]))
    >>> objective.statistics.rows, objective().shape
    (100, torch.Size([]))
    """

    def __init__(self, guide: Variational, statistics: SufficientStatistics) -> None:
        super().__init__()
        self.guide, self.model, self.statistics = guide, guide.model, statistics
        if not isinstance(guide.model, torch.nn.Module):
            self.model_modules = torch.nn.ModuleList(guide.model_modules)
        with torch.no_grad(), module_local_parameters(*guide.model_modules):
            x, y = statistics.example
            found = _regression(guide, x, y)
            self.name, prior = found.key, found.prior
            beside = prior.at(prior.x + 1)
            if not torch.equal(prior.variance, beside.variance):
                raise ValueError(
                    f"the variance of {prior.name!r} is not the same at all inputs, so that sums over them do not suffice: train by ELBO"
                )
        own = _state(guide, self.name)
        if own.keys() != statistics.basis.keys() or not all(
            torch.equal(own[k], v) for k, v in statistics.basis.items()
        ):
            raise ValueError(
                f"the statistics were made with {len(statistics.products)} features, and the {_process(guide, self.name).basis.size} features of "
                "this guide are other ones: make them with this guide"
            )

    def forward(self) -> Tensor:
        """Return minus the bound."""
        require_own_parameters(*modules_of(self.model))
        sums = self.statistics
        prior, noise, factor, products, trace = self._solved()
        rest = sums.squares + sums.rows * prior.variance.reshape(()).double() - trace
        return minus_bound(sums.rows, noise, rest, factor=factor, products=products)

    @torch.no_grad()
    def settle(self) -> None:
        """Set q(v) of the guide to the best one at these hyperparameters."""
        with module_local_parameters(*self.guide.model_modules):
            _, _, factor, products, _ = self._solved()
        set_best(process_of(self.guide, self.name), factor, products)

    def _solved(self) -> tuple[FunctionPrior, Tensor, Tensor, Tensor, Tensor]:
        """Return the prior at the example, s, the factor of B, ``A y / s`` and ``tr W``."""
        x, y = self.statistics.example
        found = _regression(self.guide, x, y)
        prior, noise = found.prior, found.noise.reshape(()).double()
        basis = _process(self.guide, self.name).basis
        once = basis.whiten(prior, self.statistics.gram)[0]
        whole = basis.whiten(prior, once.mT)[0]
        products = basis.whiten(prior, self.statistics.products.unsqueeze(-1))[0, :, 0] / noise
        factor = linalg.cholesky(linalg.identity(whole) + whole / noise, 0.0, prior.name)
        return prior, noise, factor, products, whole.diagonal().sum()


def require_rows(x: Any, y: Any) -> None:
    """Raise for rows that are no finite inputs ``(N, D)`` and targets ``(N,)``."""
    for part in (x, y):
        if not isinstance(part, Tensor):
            raise TypeError(f"inputs and targets are tensors, not {type(part).__name__}: use torch.as_tensor")
    if x.dim() != 2 or y.shape != x.shape[:1]:
        raise ValueError(
            f"the data are inputs (N, D) and targets (N,), not {tuple(x.shape)} and {tuple(y.shape)}: train by ELBO for any others"
        )
    for name, values in (("x", x), ("y", y)):
        if not bool(torch.isfinite(values).all()):
            raise ValueError(f"{name} holds NaN or infinity: drop or fill such rows before training")


def _state(guide: Variational, name: str) -> dict[str, Tensor]:
    """Return a copy of all that the features of a basis are made of."""
    basis = _process(guide, name).basis
    size = torch.tensor(basis.size)
    return {"size": size} | {key: value.detach().clone() for key, value in basis.state_dict().items()}


def _process(guide: Variational, key: str) -> Any:
    """Return the process of a Gaussian process, if its features are fixed and q(v) is full."""
    process = process_of(guide, key)
    if not isinstance(process.basis, FixedFeatures) or process.groups:
        raise ValueError(
            f"sums over the data suffice for features that do not depend on hyperparameters, and {key!r} has {type(process.basis).__name__}: take "
            "FourierFeatures, or CollapsedELBO(guide), which sees all rows in each step"
        )
    return process


def _regression(guide: Variational, x: Tensor, y: Tensor) -> Regression:
    """Return the regression of one function of a model."""
    found = regression_of(guide, x, y)
    if guide.hidden:
        raise ValueError(
            f"sums over the data suffice where nothing in front of {found.prior.name!r} is learned, and this model has the hidden layers "
            f"{', '.join(guide.hidden)}: take CollapsedELBO(guide), which sees all rows in each step"
        )
    if found.noise.numel() != 1 or found.prior.num_outputs != 1 or found.prior.batch_shape:
        raise ValueError(
            f"sums over the data are those of one function under noise of one variance, and {found.prior.name!r} has several of them: take "
            "CollapsedELBO(guide), which sees all rows in each step"
        )
    return found


def _require_all_rows(prior: FunctionPrior, value: Tensor, rows: int) -> None:
    """Raise where the Gaussian process sees other rows than those of the data, or has a mean."""
    if prior.x.shape[-2] != rows or value.shape[-1] != rows:
        raise ValueError(
            f"sums over the data suffice where the Gaussian process sees all rows, and {prior.name!r} sees {prior.x.shape[-2]} of {rows}: take a "
            "plate that takes some at random out of the model, or train by ELBO"
        )
    if bool((prior.mean != 0).any()):
        _refuse_mean(prior)


def _refuse_mean(prior: FunctionPrior) -> None:
    raise ValueError(
        f"sums over the data suffice for a function with mean zero, and {prior.name!r} has a mean function: train by ELBO"
    )


@torch.enable_grad()
def _require_fixed(guide: Variational, example: Row) -> None:
    """Raise where a parameter changes what the sums are made of: the mean, the inputs, or the targets of the Gaussian process."""
    with module_local_parameters(*guide.model_modules):
        found = _regression(guide, *example)
        prior = found.prior
        mean = torch.cat([prior.mean, prior.at(prior.x + 1).mean])
    if mean.requires_grad or bool((mean != 0).any()):
        _refuse_mean(prior)
    if prior.x.requires_grad or found.values.requires_grad:
        raise ValueError(
            f"sums over the data suffice where nothing in front of {prior.name!r} and its targets is learned, and this model changes them by "
            "parameters: train by ELBO"
        )
