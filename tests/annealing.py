"""log p(y) of a small deep GP by annealed importance sampling, forwards (a lower bound in expectation) and back (upper)."""

import math

import pyro
import torch


def log_evidence_both_ways(model, x, y, chains=600, temperatures=120):
    """Anneal from the whitened prior to the posterior with random-walk Metropolis moves, and back from its end."""
    prior = pyro.poutine.trace(model).get_trace(x, y).nodes["h"]["fn"]
    shape = prior.event_shape

    def log_likelihood(eps):
        return model.likelihood(model.top(prior.unwhiten(eps))).log_prob(y)

    steps = torch.linspace(0, 1, temperatures + 1) ** 4

    def move(eps, value, t, sweeps=3):
        for _ in range(sweeps):
            step = 0.5 / (1 + 3 * t)
            proposal = math.sqrt(1 - step**2) * eps + step * torch.randn_like(eps)  # keeps the prior
            new = log_likelihood(proposal)
            accept = torch.rand(len(eps)).log() < t * (new - value)
            eps = torch.where(accept[:, None, None], proposal, eps)
            value = torch.where(accept, new, value)
        return eps, value

    eps = torch.randn(chains, *shape)
    value = log_likelihood(eps)
    weight = torch.zeros(chains)
    for low, high in zip(steps[:-1], steps[1:], strict=True):
        weight = weight + (high - low) * value
        eps, value = move(eps, value, high)
    forward = torch.logsumexp(weight, 0) - math.log(chains)
    chosen = torch.multinomial(torch.softmax(weight, 0), chains, replacement=True)
    eps, value = move(eps[chosen], value[chosen], torch.tensor(1.0), sweeps=60)
    back = torch.zeros(chains)
    for high, low in zip(steps.flip(0)[:-1], steps.flip(0)[1:], strict=True):
        back = back - (high - low) * value
        eps, value = move(eps, value, low)
    reverse = -(torch.logsumexp(back, 0) - math.log(chains))
    return float(forward), float(reverse)
