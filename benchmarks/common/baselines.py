"""What a user would take in the place of a Gaussian process: a deep ensemble, Bayesian networks, gradient boosting.

Each predicts real numbers, or classes where ``settings.task`` says so. Each is an inference that makes a model of its own, so that ``sweep`` and ``compare`` run and score it as they do the named methods:
``sweep(datasets, ["svgp", ("ensemble", DeepEnsemble())])``.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyro
import torch
from pyro import distributions as dist
from pyro.infer import MCMC, NUTS, Predictive, Trace_ELBO
from pyro.infer.autoguide import AutoDiagonalNormal
from pyro.nn import PyroModule, PyroSample
from torch import Tensor, nn

from pyro_dgp import Fitted, Inference, Mixture, Prediction, Settings, module_local_parameters
from pyro_dgp.internal.progress import Progress
from pyro_dgp.training.loop import batches
from pyro_dgp.training.optimising import decay


def mixture_of_normals(mean: Tensor, sd: Tensor) -> Prediction:
    """Prediction whose components ``(S, N)`` have equal weights."""
    weights = mean.new_full((len(mean),), -math.log(len(mean)))

    def evaluate(rows: slice) -> Mixture:
        return Mixture(dist.Normal(mean[:, rows], sd[:, rows], validate_args=False), weights)

    return Prediction(evaluate, mean.shape[1])


def _mixture_of_classes(log_probs: Tensor) -> Prediction:
    """Prediction of classes whose components ``(S, N, C)`` have equal weights."""
    weights = log_probs.new_full((len(log_probs),), -math.log(len(log_probs)))

    def evaluate(rows: slice) -> Mixture:
        return Mixture(dist.Categorical(logits=log_probs[:, rows], validate_args=False), weights)

    return Prediction(evaluate, log_probs.shape[1])


def _num_classes(settings: Settings) -> int:
    """Number of classes; 0 for real numbers.

    :raises ValueError: for counts.
    """
    if settings.task == "counts":
        raise ValueError("the baselines are of real numbers and of classes: leave them out for counts")
    return settings.classes


class _Network(nn.Module):
    """Two hidden layers of rectifiers; mean and standard deviation of y, ``(N, 2)``, or the classes' logits ``(N, C)``."""

    def __init__(self, inputs: int, hidden: int, like: Tensor, classes: int) -> None:
        super().__init__()
        sizes = [nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU()]
        self.layers, self.classes = nn.Sequential(*sizes, nn.Linear(hidden, classes or 2)).to(like), classes

    def forward(self, x: Tensor) -> dist.Normal | dist.Categorical:
        found = self.layers(x)
        if self.classes:
            return dist.Categorical(logits=found, validate_args=False)
        mean, raw = found.unbind(-1)
        return dist.Normal(mean, nn.functional.softplus(raw) + 1e-3, validate_args=False)


@dataclass(frozen=True)
class DeepEnsemble(Inference):
    """Networks with a mean and a variance each, trained from different starts by their likelihood (Lakshminarayanan et al. 2017).

    Each leaves out rows of its own while it is trained, and ends where its NLL on these was lowest: early stopping, without which variances of small data
    collapse.

    :param members: number of networks, each trained for the steps of the settings.
    :param hidden: width of both hidden layers.
    :param weight_decay: of AdamW.
    :param held_out: share of the rows that each network leaves out.
    :param every: steps between two looks at these.
    """

    members: int = 5
    hidden: int = 50
    weight_decay: float = 1e-2
    held_out: float = 0.1
    every: int = 25

    def run(self, model: nn.Module, x: Tensor, y: Tensor, *, settings: Settings, progress: Progress) -> Fitted:
        """See :class:`Inference`."""
        start, steps = time.perf_counter(), settings.num_steps(len(x), settings.rows_of_step)
        classes = _num_classes(settings)
        networks = [_Network(x.shape[-1], self.hidden, x, classes) for _ in range(self.members)]
        for number, network in enumerate(networks):

            def told(step: int, loss: float, number: int = number) -> None:
                progress(number * steps + step, steps * self.members, {"loss": loss})

            self._train(network, x, y, steps=steps, rows=settings.rows_of_step, seed=settings.seed + number, told=told)

        @torch.no_grad()
        def predict(new: Tensor) -> Prediction:
            found = [network(new) for network in networks]
            if classes:
                return _mixture_of_classes(torch.stack([each.logits for each in found]))
            return mixture_of_normals(torch.stack([n.loc for n in found]), torch.stack([n.scale for n in found]))

        return Fitted(predict, len(x), steps * self.members, seconds=time.perf_counter() - start)

    def _train(
        self,
        network: _Network,
        x: Tensor,
        y: Tensor,
        *,
        steps: int,
        rows: int,
        seed: int,
        told: Callable[[int, float], None],
    ) -> None:
        """Train one network, and leave it where its NLL on held-out rows was lowest."""
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed)).to(x.device)
        apart, kept = order.tensor_split([max(1, round(self.held_out * len(x)))])
        optimizer = torch.optim.AdamW(network.parameters(), lr=5e-3, weight_decay=self.weight_decay)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: decay(step / steps))
        chosen, lowest = batches(len(kept), min(rows, len(kept)), seed), math.inf
        best: dict[str, Tensor] | None = None
        for step in range(1, steps + 1):
            index = kept[next(chosen)]
            optimizer.zero_grad()
            loss = -network(x[index]).log_prob(y[index]).mean()
            loss.backward()
            optimizer.step()
            schedule.step()
            told(step, float(loss.detach()))
            if step % self.every == 0 or step == steps:
                with torch.no_grad():
                    found = float(-network(x[apart]).log_prob(y[apart]).mean())
                if found < lowest:
                    lowest, best = found, copy.deepcopy(network.state_dict())
        if best is None:
            raise FloatingPointError(
                "a network of the ensemble has no finite score at its held-out rows: scale the data, or leave the ensemble out"
            )
        network.load_state_dict(best)


class _BayesianNetwork(PyroModule):
    """One hidden layer of rectifiers with normal weights; real numbers have a noise variance with a prior, classes a softmax."""

    def __init__(self, inputs: int, hidden: int, like: Tensor, classes: int) -> None:
        super().__init__()

        def prior(*shape: int, scale: float = 1.0) -> PyroSample:
            return PyroSample(dist.Normal(like.new_zeros(()), scale).expand(shape).to_event(len(shape)))

        outputs = classes or 1
        self.classes = classes
        self.first, self.bias = prior(inputs, hidden, scale=inputs**-0.5), prior(hidden)
        self.second, self.offset = prior(hidden, outputs, scale=hidden**-0.5), prior(outputs)
        if not classes:
            self.noise = PyroSample(dist.LogNormal(like.new_tensor(-1.5), 1.0))

    def forward(self, x: Tensor, y: Tensor | None = None, rows: int | None = None) -> Tensor:
        hidden = torch.relu(x @ self.first + self.bias.unsqueeze(-2))
        found = hidden @ self.second + self.offset.unsqueeze(-2)
        if self.classes:
            likelihood = dist.Categorical(logits=found)
        else:
            likelihood = dist.Normal(found.squeeze(-1), self.noise.unsqueeze(-1))
        with pyro.poutine.scale(scale=(rows or x.shape[-2]) / x.shape[-2]):
            pyro.sample("y", likelihood.to_event(1), obs=y)
        return pyro.deterministic("found", found)

    @torch.no_grad()
    def predicted(self, x: Tensor, draws: int, **given: object) -> Prediction:
        """Predict by draws of the weights.

        :param given: what Pyro's ``Predictive`` takes them from: ``guide`` or ``posterior_samples``.
        """
        sites = ("found",) if self.classes else ("found", "noise")
        with module_local_parameters():
            drawn = Predictive(self, num_samples=draws, return_sites=sites, **given)(x)
        found = drawn["found"].reshape(draws, len(x), -1)
        if self.classes:
            return _mixture_of_classes(found.log_softmax(-1))
        mean = found.squeeze(-1)
        return mixture_of_normals(mean, drawn["noise"].reshape(draws, 1).expand_as(mean))


@dataclass(frozen=True)
class MeanFieldNetwork(Inference):
    """A Bayesian network by mean-field variational inference, in plain Pyro: ``bnn-svi``.

    :param hidden: width of the hidden layer.
    :param draws: draws of the weights in predictions.
    """

    hidden: int = 50
    draws: int = 100

    def run(self, model: nn.Module, x: Tensor, y: Tensor, *, settings: Settings, progress: Progress) -> Fitted:
        """See :class:`Inference`."""
        start, steps = time.perf_counter(), settings.num_steps(len(x), settings.rows_of_step)
        with module_local_parameters():
            network = _BayesianNetwork(x.shape[-1], self.hidden, x, _num_classes(settings))
            guide = AutoDiagonalNormal(network, init_scale=0.03)
            guide(x[:2], y[:2], len(x))
            optimizer = torch.optim.Adam(guide.parameters(), lr=0.01)
            schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: decay(step / steps))
            rows, elbo = batches(len(x), settings.rows_of_step, settings.seed), Trace_ELBO()
            for step in range(steps):
                index = next(rows)
                optimizer.zero_grad()
                loss = elbo.differentiable_loss(network, guide, x[index], y[index], len(x)) / len(x)
                loss.backward()
                optimizer.step()
                schedule.step()
                progress(step + 1, steps, {"loss": float(loss.detach())})

        def predict(new: Tensor) -> Prediction:
            return network.predicted(new, self.draws, guide=guide)

        return Fitted(predict, len(x), steps, seconds=time.perf_counter() - start)


@dataclass(frozen=True)
class SampledNetwork(Inference):
    """The same network by the No-U-Turn sampler of Pyro, on 1,000 rows at most: ``bnn-nuts``.

    :param hidden: width of the hidden layer.
    :param most: training rows at most; a random subset is taken of more.
    """

    hidden: int = 50
    most: int = 1000

    def most_rows(self, settings: Settings) -> int:
        """See :class:`Inference`."""
        return self.most

    def run(self, model: nn.Module, x: Tensor, y: Tensor, *, settings: Settings, progress: Progress) -> Fitted:
        """See :class:`Inference`."""
        start, steps = time.perf_counter(), settings.warmup + settings.mcmc_samples
        pyro.set_rng_seed(settings.seed)
        with module_local_parameters():
            network = _BayesianNetwork(x.shape[-1], self.hidden, x, _num_classes(settings))
            kernel = NUTS(network, max_tree_depth=6)
            chain = MCMC(kernel, num_samples=settings.mcmc_samples, warmup_steps=settings.warmup, disable_progbar=True)
            chain.run(x, y)
        draws = chain.get_samples()
        progress(steps, steps, {})

        def predict(new: Tensor) -> Prediction:
            return network.predicted(new, settings.mcmc_samples, posterior_samples=draws)

        return Fitted(predict, len(x), steps, seconds=time.perf_counter() - start)


@dataclass(frozen=True)
class QuantileBoosting(Inference):
    """Gradient boosting of quantiles by scikit-learn, one booster for each level ``(k + 1/2) / K``.

    The density is a mixture of K normals, one at each quantile (sorted, so that none cross). They are as wide as the gap between the
    neighbours, and at least as the rule of Silverman (1986, Eq. 3.31) says of K points with the interquartile range of the row. Classes have one
    booster of their probabilities.

    :param levels: K.
    """

    levels: int = 20

    def run(self, model: nn.Module, x: Tensor, y: Tensor, *, settings: Settings, progress: Progress) -> Fitted:
        """See :class:`Inference`."""
        from sklearn.ensemble import HistGradientBoostingRegressor

        start, inputs, targets = time.perf_counter(), x.cpu().numpy(), y.cpu().numpy()
        if classes := _num_classes(settings):
            return self._classifier(inputs, targets, classes, seed=settings.seed)
        boosters = []
        for k in range(self.levels):
            booster = HistGradientBoostingRegressor(
                loss="quantile", quantile=(k + 0.5) / self.levels, early_stopping=True, random_state=settings.seed
            )
            boosters.append(booster.fit(inputs, targets))
            progress(k + 1, self.levels, {})

        def predict(new: Tensor) -> Prediction:
            found = np.sort(np.stack([booster.predict(new.cpu().numpy()) for booster in boosters]), 0)
            mean = torch.as_tensor(found).to(new)
            gaps = torch.cat([mean[1:2] - mean[:1], 0.5 * (mean[2:] - mean[:-2]), mean[-1:] - mean[-2:-1]])
            low, high = mean.quantile(0.25, 0), mean.quantile(0.75, 0)
            least = 0.9 * (high - low) / 1.34 * self.levels**-0.2
            return mixture_of_normals(mean, torch.maximum(gaps, least).clamp_min(0.01))

        return Fitted(predict, len(x), self.levels, seconds=time.perf_counter() - start)

    def _classifier(self, inputs: np.ndarray, targets: np.ndarray, classes: int, *, seed: int) -> Fitted:
        """Fit one booster of the classes; a class that training lacks has a probability of nearly zero."""
        from sklearn.ensemble import HistGradientBoostingClassifier

        start = time.perf_counter()
        booster = HistGradientBoostingClassifier(early_stopping=True, random_state=seed).fit(
            inputs, targets.astype(int)
        )

        def predict(new: Tensor) -> Prediction:
            probs = new.new_full((len(new), classes), 1e-12)
            probs[:, torch.as_tensor(booster.classes_)] = torch.as_tensor(booster.predict_proba(new.cpu().numpy())).to(
                new
            )
            return _mixture_of_classes(probs.clamp_min(1e-12).log()[None])

        return Fitted(predict, len(inputs), booster.n_iter_, seconds=time.perf_counter() - start)


BASELINES: dict[str, Inference] = {
    "ensemble": DeepEnsemble(),
    "bnn-svi": MeanFieldNetwork(),
    "bnn-nuts": SampledNetwork(),
    "quantile-boosting": QuantileBoosting(),
}
