"""What several processes can train together: losses and models in which the rows of a step do not depend on one another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_leaves

from pyro_dgp.guides.variational import Variational
from pyro_dgp.internal.rows import Batch
from pyro_dgp.internal.site_names import site_of
from pyro_dgp.losses import Loss
from pyro_dgp.training.checkpoints import checksum

_REMEDY = "train it in a single process"


def require_shareable(objective: Any, *, rows: int, processes: int) -> None:
    """Raise for a run whose steps several processes cannot share.

    :param objective: ``loss(model, guide)``.
    :param rows: number of rows of a step.
    """
    if rows < processes:
        raise ValueError(
            f"a step has {rows} rows and there are {processes} processes: take a batch_size of {processes} or more"
        )
    loss, guide = getattr(objective, "elbo", None), getattr(objective, "guide", None)
    if isinstance(objective, nn.parallel.DistributedDataParallel) or not isinstance(guide, Variational):
        raise ValueError(
            f"several processes train loss(model, guide) of a loss of this library, not {type(objective).__name__}: give the bare loss, or {_REMEDY}"
        )
    if not isinstance(loss, Loss) or loss.num_data is None:
        raise ValueError(
            f"each process has a part of the rows of a step, which {type(loss).__name__} must weight: give it the number of all rows, num_data=len(x)"
        )
    _require_rows_apart(guide)
    for name, module in objective.named_modules():
        if isinstance(module, _BatchNorm):
            raise ValueError(
                f"the module {name!r} is {type(module).__name__}, whose result depends on which rows a process has: take LayerNorm or none, or {_REMEDY}"
            )


def _require_rows_apart(guide: Variational) -> None:
    """Raise for sites that join rows, have values of their own for each row, or have rows other than those of a step."""
    structure, networks = guide.structure, guide.networks._modules
    if structure.joins_rows:
        raise ValueError(
            f"a part of the model joins rows of function values, and a process has a part of them: {_REMEDY}"
        )
    for name in structure.local:
        raise ValueError(f"the latent site {name!r} has a value for each row, with noise of its own: {_REMEDY}")
    for name in networks:
        raise ValueError(
            f"the network of the site {name!r} looks at all rows of a step, and a process has a part of them: {_REMEDY}"
        )
    for key in (*map(site_of, guide.processes._modules), *structure.responses):
        if key in structure.without_rows:
            raise ValueError(
                f"the site {key!r} has rows of its own beside those of a step, which every process would have whole: {_REMEDY}"
            )


def described(objective: nn.Module, facts: Mapping[str, Any], first: Batch) -> dict[str, Any]:
    """Return what must be the same in all processes, by the words of a message.

    :param facts: settings of the run.
    :param first: rows of its first step.
    """
    args = first[slice(None)]
    tensors = [leaf for leaf in tree_leaves(args) if isinstance(leaf, Tensor)]
    return {
        **{f"the setting {name}": value for name, value in facts.items()},
        "the loss": _loss_of(objective),
        "the model": [type(module).__qualname__ for module in objective.modules()],
        "a parameter": [(name, tuple(each.shape), str(each.dtype)) for name, each in objective.named_parameters()],
        "the data": checksum(tensors),
    }


def _loss_of(objective: nn.Module) -> tuple[Any, ...]:
    """Return the kind and the settings of the loss of ``loss(model, guide)``; nothing of other objectives."""
    loss = getattr(objective, "elbo", None)
    return (type(loss).__qualname__, loss.num_data, loss.figures()) if isinstance(loss, Loss) else ()
