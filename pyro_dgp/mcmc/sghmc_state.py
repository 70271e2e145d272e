"""What stochastic-gradient HMC carries from step to step: positions, momenta, the window of past positions, and the draws that were kept."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from pyro_dgp.internal.finite import all_finite
from pyro_dgp.training.checkpoints import attributes_to_save, optimizer_state, set_optimizer_state
from pyro_dgp.training.optimising import decay

_REMEDY = "lower step_size, or use float64 if this is float32"


class HamiltonianState:
    """The state of the chain: positions, which are the guide's own parameters, momenta, and the preconditioner."""

    def __init__(self, positions: list[nn.Parameter], friction: float) -> None:
        self.positions, self.friction = positions, friction
        self.momenta = [torch.zeros_like(p) for p in positions]
        self.memory = [torch.ones_like(p) for p in positions]
        self.gradients = [torch.ones_like(p) for p in positions]
        self.squares = [torch.ones_like(p) for p in positions]

    def move(self, potential: Tensor, step_size: float, adapt: bool) -> None:
        """Move all positions by one step of size e."""
        value = float(potential.detach())
        if not math.isfinite(value):
            raise ValueError(f"the potential is {value}: {_REMEDY}")
        gradients = torch.autograd.grad(potential, self.positions)
        if not all_finite(gradients):
            raise ValueError(
                f"the gradient of the inducing variables holds NaN or infinity, and the potential is {value}: {_REMEDY}"
            )
        noise = 2 * self.friction
        with torch.no_grad():
            for i, (position, gradient) in enumerate(zip(self.positions, gradients, strict=True)):
                if adapt:
                    self._learn(i, gradient)
                metric = step_size**2 / (self.squares[i].sqrt() + 1e-16)
                momentum = self.momenta[i].mul_(1 - self.friction)
                momentum.sub_(metric * gradient).add_((noise * metric).sqrt() * torch.randn_like(position))
                position.add_(momentum)

    def _learn(self, i: int, gradient: Tensor) -> None:
        """Update running moments of the gradient, whose window grows where the gradient is mostly noise (Springenberg et al. 2016, Eq. 9)."""
        rate = 1 / (self.memory[i] + 1)
        self.memory[i] = 1 + self.memory[i] * (1 - self.gradients[i].square() / (self.squares[i] + 1e-16))
        self.gradients[i].lerp_(gradient, rate)
        self.squares[i].lerp_(gradient.square(), rate)

    def copy(self) -> list[Tensor]:
        """A copy of the positions."""
        return [p.detach().clone() for p in self.positions]

    @contextmanager
    def at(self, values: list[Tensor]) -> Iterator[None]:
        """A scope in which the parameters are at other positions."""
        own = self.copy()
        self._set(values)
        try:
            yield
        finally:
            self._set(own)

    def _set(self, values: list[Tensor]) -> None:
        for position, value in zip(self.positions, values, strict=True):
            position.data.copy_(value)


class MovingWindow:
    """Past positions of the chain, and the optimiser that trains all other parameters at one of them.

    :param length: number of past positions.
    :param steps: steps of the optimiser in all, over which its learning rate falls.
    """

    def __init__(self, parameters: list[nn.Parameter], *, length: int, learning_rate: float, steps: int) -> None:
        self.past: deque[list[Tensor]] = deque(maxlen=length)
        self.adam = torch.optim.Adam(parameters, lr=learning_rate, fused=True)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.adam, lambda step: decay(step / max(steps, 1)))

    def train(self, chain: HamiltonianState, objective: Callable[[], Tensor]) -> None:
        """Add the present positions and take a step of Adam at positions drawn from the window."""
        self.past.append(chain.copy())
        with chain.at(self.past[int(torch.randint(len(self.past), ()))]):
            self.adam.zero_grad()
            loss = objective()
            loss.backward()  # type: ignore[no-untyped-call]
            gradients = [p.grad for group in self.adam.param_groups for p in group["params"] if p.grad is not None]
            if not all_finite([loss.detach(), *gradients]):
                raise ValueError(
                    "the potential or its gradient in the hyperparameters holds NaN or infinity: lower step_size and learning_rate, or use float64 "
                    "if this is float32"
                )
            self.adam.step()
            self.schedule.step()


@dataclass
class Progressed:
    """A chain as far as it has come, with what it is gone on with from.

    :ivar loss: the potential, a module that holds all parameters.
    :ivar first: the potential of the first step, nats a row.
    :ivar kept: the draws, and ``potentials`` theirs.
    """

    loss: nn.Module
    chain: HamiltonianState
    window: MovingWindow
    steps: int = 0
    first: float = math.nan
    kept: list[list[Tensor]] = field(default_factory=list)
    potentials: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Note how attributes begin."""
        self.attributes = attributes_to_save(self.loss)

    def state_dict(self) -> dict[str, Any]:
        """See :class:`~pyro_dgp.training.checkpoints.Stateful`."""
        return {
            "parameters": self.loss.state_dict(),
            "attributes": self.attributes.changed(),
            "moments": [getattr(self.chain, name) for name in _MOMENTS],
            "past": list(self.window.past),
            "optimizer": optimizer_state(self.window.adam),
            "learned": self.window.schedule.last_epoch,
            "steps": self.steps,
            "first": self.first,
            "kept": self.kept,
            "potentials": torch.tensor(self.potentials, dtype=torch.float64),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Set the state."""
        self.loss.load_state_dict(state["parameters"])
        self.attributes.set(state.get("attributes", {}))
        device = self.chain.positions[0].device
        for name, values in zip(_MOMENTS, state["moments"], strict=True):
            setattr(self.chain, name, [value.to(device) for value in values])
        self.window.past.extend([value.to(device) for value in values] for values in state["past"])
        set_optimizer_state(self.window.adam, state["optimizer"])
        self.window.schedule.last_epoch = state["learned"]
        self.steps, self.first, self.kept[:] = state["steps"], state["first"], state["kept"]
        self.potentials[:] = state["potentials"].tolist()


#: What a chain carries besides its positions.
_MOMENTS = ("momenta", "memory", "gradients", "squares")
