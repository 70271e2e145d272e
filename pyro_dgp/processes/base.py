"""Base class of variational processes, which a guide puts in the place of the prior of a GP."""

from __future__ import annotations

from torch import Size, Tensor

from pyro_dgp.gp import FunctionPrior
from pyro_dgp.internal.assignment import CheckedModule
from pyro_dgp.processes.marginal import FunctionMarginal


class Process(CheckedModule):
    """A variational distribution q(f) over one GP.

    ``process(prior)`` is the marginal of q(f) at the prior's inputs. Kernel and mean are those of the prior.

    :ivar groups: batch axes of independent functions, each with a q of its own; ``()`` for one function.

    >>> import torch
    >>> from pyro_dgp import GaussianProcess, InducingPoints, Matern52, Process
    >>> prior = GaussianProcess(Matern52(), num_outputs=2)(torch.randn(20, 3))
    >>> process = InducingPoints(20).create(prior, hidden=False)
    >>> isinstance(process, Process), process(prior).mean.shape
    (True, torch.Size([20, 2]))
    """

    groups: Size = Size()

    def forward(self, prior: FunctionPrior, at: Tensor | None = None) -> FunctionMarginal:
        """Return the marginal of q(f) at ``prior.x``.

        :param at: inputs that the inference functions of an amortised process look at, ``prior.x`` if not given. Other
            processes ignore it.
        """
        raise NotImplementedError
