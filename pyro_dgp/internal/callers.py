"""The inference of Pyro that has called a guide."""

from __future__ import annotations

import sys
from typing import Any

from pyro.infer import ELBO, TraceMeanField_ELBO
from pyro.infer.abstract_infer import TracePosterior
from pyro.poutine import runtime
from pyro.poutine.trace_messenger import TraceMessenger


def refuse_pairs_of_traces(sites: list[str]) -> None:
    """Raise where a stock inference asks for the joint density of function values, which a guide does not have.

    A guide draws the rows of a GP independently of each other, and its KL from the prior is known in total. Of Pyro's
    losses ``TraceMeanField_ELBO`` takes this KL. The others take the ratio of two densities at one draw, and the prior's
    density of independent rows means nothing. A loss does not tell a guide who it is, so that its callers are looked at.

    :param sites: names of the Gaussian process sites.
    """
    frame = sys._getframe(1)
    while frame is not None:
        path, name = frame.f_code.co_filename, frame.f_code.co_name
        if "/pyro/infer/" in path.replace("\\", "/"):
            caller: Any = frame.f_locals.get("self")
            pairs = isinstance(caller, ELBO | TracePosterior) and not isinstance(caller, TraceMeanField_ELBO)
            if pairs or name == "vectorized_importance_weights":
                who = type(caller).__name__ if pairs else name
                raise ValueError(
                    f"{who} needs the joint density of the function values at {sites[0]!r}, and the guide has their marginals and their KL "
                    "alone: use TraceMeanField_ELBO or a loss of pyro_dgp such as ELBO"
                )
            if isinstance(caller, TraceMeanField_ELBO):
                return
        frame = frame.f_back  # type: ignore[assignment]


def is_trained() -> bool:
    """Tell whether a model runs in a step of Pyro's ``SVI``, which collects its parameters."""
    return any(isinstance(handler, TraceMessenger) and handler.param_only for handler in runtime._PYRO_STACK)
