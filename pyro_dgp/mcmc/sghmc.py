"""Stochastic-gradient HMC over inducing variables, with moving-window updates of all else ([SGHMC]: Havasi et al. 2018)."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, asdict, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from pyro_dgp.guides.variational import Variational
from pyro_dgp.internal.global_store import require_none_loaded
from pyro_dgp.internal.parameters import evaluating, module_local_parameters
from pyro_dgp.internal.progress import Progress
from pyro_dgp.internal.site_names import process_parameter
from pyro_dgp.likelihoods import CollapsedObservation
from pyro_dgp.losses import ELBO
from pyro_dgp.mcmc.remembered import Remembered
from pyro_dgp.mcmc.sghmc_state import HamiltonianState, MovingWindow, Progressed
from pyro_dgp.prediction.from_guide import answer_from_guide
from pyro_dgp.prediction.mixture import Mixture
from pyro_dgp.prediction.request import Answer, Request, answer
from pyro_dgp.prediction.thinning import equally_spaced
from pyro_dgp.processes import WhitenedProcess
from pyro_dgp.training.checkpoints import Run, facts_of
from pyro_dgp.training.distributed import require_single_process
from pyro_dgp.training.left_out import warn_of_left_out
from pyro_dgp.training.loop import batches, training_rows

#: e at the first step of the burn-in at least.
FIRST_STEP = 0.1


@dataclass
class InducingDraws:
    """The result of stochastic-gradient HMC: ``predict(draws, x)`` predicts from it.

    It reads the other parameters of the guide and the model, and raises an error once these have changed, by a second run or by training.
    Give each run a guide of its own.

    :ivar guide: the guide that was sampled.
    :ivar draws: whitened inducing variables of each GP ``(draws, D_out, M)``, by the name of the guide's parameter: one chain, for ArviZ
        ``{name: values[None] for name, values in draws.items()}``. In a model with priors on hyperparameters they spread less than the inducing
        variables in use, which are these plus ``q.latent_weights`` times the standardised deviations of the hyperparameters.
    :ivar potential: minus the log joint density of mini-batches just before the move to each draw, nats, scaled to all rows, a stochastic
        estimate.
    :ivar seconds: wall-clock time.
    """

    guide: Variational
    draws: Mapping[str, Tensor] = field(default_factory=dict)
    _: KW_ONLY
    potential: Tensor = field(default_factory=lambda: torch.zeros(0))
    seconds: float = 0.0
    _then: Remembered | None = field(default=None, init=False, repr=False, compare=False)

    def remember(self) -> InducingDraws:
        """Note the parameters that the draws go with, and return this; without it, those of the first prediction count."""
        self._then = Remembered([self.guide, *self.guide.model_modules])
        return self

    def states(self, numbers: Iterable[int] | None = None) -> list[dict[str, Tensor]]:
        """Return the values of draws by the name of the guide's parameter: those of some numbers, or all.

        :raises ValueError: after other parameters or buffers of the guide or the model have changed.
        """
        self.require_unchanged()
        numbers = range(self.num_draws) if numbers is None else numbers
        return [{name: values[i] for name, values in self.draws.items()} for i in numbers]

    @property
    def num_draws(self) -> int:
        """Number of draws."""
        return len(next(iter(self.draws.values())))

    def require_unchanged(self) -> None:
        """Raise after parameters or buffers that the draws go with have changed."""
        if self._then is None:
            self.remember()
        assert self._then is not None
        changed = self._then.changed(besides=self.draws.keys())
        if changed:
            raise ValueError(
                f"{changed[0]!r} of the guide or its model has changed since the inducing variables were drawn, by another run or by training: "
                "sample again, and give each run a guide and a model of its own"
            )


@dataclass(frozen=True, kw_only=True)
class StochasticGradientHMC:
    """Samples ``v`` of every GP from ``p(v | y)`` by mini-batches (Chen, Fox and Guestrin 2014; [SGHMC] section 3).

    With momentum r, friction a, step size e, gradient g of the potential ``U = -log p(y, v)`` and a diagonal preconditioner P::

        r <- (1 - a) r - e^2 P g + N(0, 2 a e^2 P),    v <- v + r.

    This is Eq. 15 of Chen, Fox and Guestrin.

    There is no accept step: draws have a bias that falls with the square of e for exact gradients; noise of the gradients adds one that falls with e.
    P is one over the root of the running second moment of g, learned in the burn-in (Springenberg et al. 2016) and fixed
    afterwards. In the burn-in all other parameters (inducing points, hyperparameters) take a step of Adam after each move, at a
    draw taken from a window of the last ones: the stochastic EM of [SGHMC] section 4. They stand still while draws are kept.

    Latent sites beside the GPs, hyperparameters with priors among them, are not sampled: they have the posterior of the guide, independent
    of v, which the burn-in trains with the rest. Where they matter, sample with :class:`~pyro_dgp.WhitenedNUTS` on a sparse model.

    Networks are in evaluation mode throughout, as in predictions: they drop nothing out, and normalise by the statistics that they have.

    :param step_size: e times the root of the number of rows ([SGHMC] takes 0.01 and many more steps). In the first half of the burn-in e
        falls from :data:`FIRST_STEP`, if that is larger.
    :param friction: a, in (0, 1).
    :param burn_in: steps before draws are kept.
    :param thin: steps between draws.
    :param window: past values of v that hyperparameters are trained at.
    :param learning_rate: of Adam for all that is not sampled, falling at the end of the burn-in as in :func:`~pyro_dgp.fit`; 0 leaves it
        as it is.
    """

    step_size: float = 0.2
    friction: float = 0.05
    burn_in: int = 2000
    thin: int = 20
    window: int = 300
    learning_rate: float = 0.01

    def __post_init__(self) -> None:
        if not 0 < self.friction < 1:
            raise ValueError(f"friction lies between 0 and 1, got {self.friction}")
        if min(self.step_size, self.thin, self.window) <= 0 or self.burn_in < 0 or self.learning_rate < 0:
            raise ValueError(
                f"step_size, thin and window are above 0, burn_in and learning_rate at least 0, got {self.step_size}, {self.thin}, "
                f"{self.window}, {self.burn_in}, {self.learning_rate}"
            )

    def _step(self, step: int, rows: int) -> float:
        """Step size e at a step. It is larger in the first half of the burn-in, since for many rows draws lie far from the start in units of e."""
        first = FIRST_STEP * (1 - 2 * step / self.burn_in) if step < self.burn_in else 0.0
        return max(self.step_size / math.sqrt(rows), first)

    def run(
        self,
        guide: Variational,
        x: Tensor,
        y: Tensor,
        *,
        num_samples: int,
        batch_size: int = 1000,
        seed: int = 0,
        report: Progress | None = None,
        **arguments: Any,
    ) -> InducingDraws:
        """Sample; the guide is left at the last draw, its other parameters trained.

        :param guide: initialised, with ``InducingPoints(M, covariance="delta")`` for every GP: its points are what is sampled. Its
            propagation's samples estimate ``log p(y | v)`` from below, one of them as in [SGHMC].
        :param x: training inputs ``(N, D)`` or ``(B, N, D)``, with groups as in :func:`~pyro_dgp.fit`.
        :param y: targets.
        :param num_samples: draws kept.
        :param batch_size: rows of a gradient.
        :param arguments: further arguments of the model, such as ``exposure=e``; of a tensor of N rows a step gets those of its batch.
        """
        require_single_process("StochasticGradientHMC samples")
        guide.require_initialized()
        data = training_rows(x, y, arguments, modules=guide.model_modules, groups=guide.groups)
        warn_of_left_out(guide, data, call="run(guide, x, y, {name}=...)")
        count = len(data)
        start, total = time.perf_counter(), self.burn_in + num_samples * self.thin
        loss = ELBO(count)(guide.model, guide)
        require_none_loaded(loss)
        with module_local_parameters(loss), evaluating(loss), torch.random.fork_rng(devices=[]):
            _require_slopes(guide, data)
            torch.manual_seed(seed)
            sampled = _sampled(guide)
            chain = HamiltonianState(list(sampled.values()), self.friction)
            others = [p for p in loss.parameters() if all(p is not v for v in sampled.values())]
            window = MovingWindow(others, length=self.window, learning_rate=self.learning_rate, steps=self.burn_in)
            state = Progressed(loss, chain, window)

            def of_next_rows(rows: Iterator[Tensor]) -> Tensor:
                args, kwargs = data[next(rows)]
                value: Tensor = loss(*args, **kwargs)
                return value

            saved = Run(
                {"rows": count, "batch_size": batch_size, "seed": seed, **asdict(self), **facts_of(data.tensors)}
            )
            saved.resume(state, lambda: float(of_next_rows(batches(count, batch_size, seed)).detach()) / count)
            trains = self.learning_rate > 0
            taken = state.steps + (min(state.steps, self.burn_in) if trains else 0)
            rows = itertools.islice(batches(count, batch_size, seed), taken, None)
            for step in range(state.steps, total):
                potential = of_next_rows(rows)
                chain.move(potential, self._step(step, count), adapt=step < self.burn_in)
                if step < self.burn_in and trains:
                    window.train(chain, lambda: of_next_rows(rows) / count)
                elif step >= self.burn_in and (step - self.burn_in + 1) % self.thin == 0:
                    state.kept.append(chain.copy())
                    state.potentials.append(float(potential.detach()))
                state.steps, value = step + 1, float(potential.detach()) / count
                state.first = value if step == 0 else state.first
                if report is not None:
                    report(step + 1, total, {"potential": value})
                saved.stepped(state, state.first, is_last=step + 1 == total)
        kept, potentials = state.kept[:num_samples], state.potentials[:num_samples]
        draws = {name: torch.stack([draw[i] for draw in kept]) for i, name in enumerate(sampled)}
        seconds = time.perf_counter() - start
        return InducingDraws(guide, draws, potential=torch.tensor(potentials), seconds=seconds).remember()


def _require_slopes(guide: Variational, data: Any) -> None:
    """Raise for a likelihood that is a step function of the function values."""
    args, kwargs = data[slice(0, 1)]
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        trace = guide.components(*args, new_rows=True, **kwargs).trace
    for name, site in trace.nodes.items():
        if isinstance(site.get("fn"), CollapsedObservation) and site["fn"].conditional.is_flat:
            raise ValueError(
                f"the likelihood at {name!r} has no gradient in the function values: take EllipticalSlice, which needs none, or Softmax"
            )


def _sampled(guide: Variational) -> dict[str, nn.Parameter]:
    """The parameters that are sampled, the inducing variables, by name."""
    wrong = [
        key
        for key, process in guide.processes.named_children()
        if not (isinstance(process, WhitenedProcess) and process.q.kind == "delta")
    ]
    if wrong:
        raise ValueError(
            f"the process of {wrong[0]!r} is no set of inducing variables to be sampled: give the guide "
            'InducingPoints(M, covariance="delta"), or another family of this covariance'
        )
    return {name: value for name, value in guide.named_parameters() if _is_sampled(name)}


def _is_sampled(name: str) -> bool:
    """Tell whether a parameter of a guide holds coefficients of a process, ``q.mean`` or ``q.parts.1.mean``."""
    owner = process_parameter(name)
    return owner is not None and owner[1].startswith("q.") and owner[1].endswith(".mean")


@answer.register
def answer_from_inducing_draws(sampled: InducingDraws, request: Request) -> Answer:
    """Return the answer of draws of inducing variables: one mixture component for each, or as many for each as make ``num_samples`` where these differ."""
    states = sampled.states(equally_spaced(sampled.num_draws, request.num_samples))
    components = len(states) * -(-request.num_samples // len(states))
    given = answer_from_guide(sampled.guide, replace(request, num_samples=components), states)

    def evaluate(rows: slice) -> Mixture:
        sampled.require_unchanged()
        return given.evaluate(rows)

    return given._replace(evaluate=evaluate)
