"""Inference by stochastic-gradient HMC over inducing variables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import Tensor, nn

from pyro_dgp.guides.variational import Variational
from pyro_dgp.internal.progress import Progress
from pyro_dgp.internal.site_names import function_site_of, inducing_site, process_parameter
from pyro_dgp.mcmc.diagnostics import convergence
from pyro_dgp.mcmc.sghmc import StochasticGradientHMC
from pyro_dgp.processes import ProcessFamily
from pyro_dgp.propagation import MonteCarlo
from pyro_dgp.zoo.anatomy import Anatomy, anatomy_of
from pyro_dgp.zoo.by_mcmc import monitored
from pyro_dgp.zoo.inference import Fitted, Inference
from pyro_dgp.zoo.predictors import InducingDrawsPredictor, Saved, predictive_means
from pyro_dgp.zoo.settings import Settings


@dataclass(frozen=True)
class BySGHMC(Inference):
    """Sampling of inducing variables by stochastic-gradient HMC; hyperparameters by moving windows.

    >>> from pyro_dgp import InducingPoints
    >>> inference = BySGHMC(InducingPoints(20, covariance="delta"), StochasticGradientHMC(thin=5))
    >>> inference.approximates_posterior(Settings())
    True

    :param processes: inducing points of covariance ``"delta"``, or a function of the settings that makes them.
    :param sampler: the sampler; its burn-in and learning rate are those of the settings.
    """

    processes: ProcessFamily | Callable[[Settings], ProcessFamily]
    sampler: StochasticGradientHMC = StochasticGradientHMC()

    def run(self, model: nn.Module, x: Tensor, y: Tensor, *, settings: Settings, progress: Progress) -> Fitted:
        """See :class:`Inference`."""
        steps, site = settings.num_steps(len(x), settings.rows_of_step), anatomy_of(model, x, y).response
        guide = self._guide(model, settings)
        guide.initialize(x, y)
        sampler = replace(self.sampler, burn_in=steps, learning_rate=settings.learning_rate)
        result = sampler.run(
            guide,
            x,
            y,
            num_samples=settings.mcmc_samples,
            batch_size=settings.rows_of_step,
            seed=settings.seed,
            report=progress,
        )
        draws = {_site(name): values.mT.unsqueeze(0) for name, values in result.draws.items()}
        predictor = InducingDrawsPredictor(guide, result.draws, site)
        stats = {"potential": result.potential.numpy()[None]}
        judged = convergence(monitored(-stats["potential"], predictive_means(predictor, x, 1)), None)
        figures = {"inducing": self._family(settings).num_inducing} | {
            name: figure for name, figure in judged.items() if name != "divergences"
        }
        steps += settings.mcmc_samples * sampler.thin
        return Fitted(
            predictor,
            len(x),
            steps,
            seconds=result.seconds,
            draws=draws,
            sample_stats=stats,
            diagnostics=figures,
        )

    def restore(
        self, model: nn.Module, x: Tensor, y: Tensor, *, settings: Settings, saved: Saved
    ) -> InducingDrawsPredictor:
        """See :class:`Inference`."""
        site, guide = anatomy_of(model, x, y).response, self._guide(model, settings)
        model.load_state_dict(saved.state("model"))
        guide.load_state_dict(saved.state("guide"))
        return InducingDrawsPredictor(guide, saved.group("draws"), site)

    def _guide(self, model: nn.Module, settings: Settings) -> Variational:
        return Variational(model, self._family(settings), MonteCarlo(1))

    def _family(self, settings: Settings) -> ProcessFamily:
        return self.processes if isinstance(self.processes, ProcessFamily) else self.processes(settings)

    def remarks(self, settings: Settings) -> list[str]:
        """How the settings of chains are read."""
        return [
            "one chain, whatever --chains says; its burn-in are the epochs of training, not --warmup; R-hat compares the halves of the chain"
        ]

    def remarks_on(self, anatomy: Anatomy) -> list[str]:
        """Latent sites that are not sampled."""
        if not anatomy.latents:
            return []
        named = ", ".join(anatomy.latents)
        return [
            f"samples inducing variables alone: the posterior of {named} is a normal approximation, trained in the burn-in"
        ]


def _site(parameter: str) -> str:
    """The site that sparse sampling gives the inducing variables of a guide's parameter, ``y_f_inducing_whitened``."""
    process = process_parameter(parameter)
    assert process is not None
    return inducing_site(function_site_of(process[0]))
