"""Arguments of a likelihood that lead with the axis of components, as an exposure that a hidden layer makes."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from pyro_dgp.guides.guide_pass import GuidePass
from pyro_dgp.likelihoods import Observation
from pyro_dgp.likelihoods.observation import join
from pyro_dgp.processes import FunctionMarginal


def led_by_components(
    observation: Observation, marginals: Mapping[str, FunctionMarginal], run: GuidePass, name: str
) -> tuple[dict[str, FunctionMarginal], bool]:
    """Return marginals of functions that do not lead with the components, with that axis if an argument of the likelihood has it, and whether it has.

    :param name: the site of the observation, for the message of a propagation that carries no arguments.
    """
    means, components = join({key: q.mean for key, q in marginals.items()}), run.components
    if components is None:
        return dict(marginals), False
    with torch.no_grad():
        batch = observation.conditional.given(means).batch_shape
    if len(batch) <= means.dim() - 2 or batch[0] != components:
        return dict(marginals), False
    if run.propagation is not None:
        run.propagation.require_plain_site(name)
    return {key: q.expand((components, *q.batch_shape)) for key, q in marginals.items()}, True
