"""The objectives of ``svgp``, ``ppgpr`` and ``dsvi`` in plain torch: what a training step costs with no framework around it."""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor, nn

from pyro_dgp import Projection


class StraightLine(nn.Module):
    """Minus the evidence lower bound of stacked sparse GPs, or the predictive objective of one layer; Matern 5/2 with ARD.

    :param x: inputs, which fix the projections that are the means of hidden layers.
    :param layers: number of GPs, of which all but the last have ``width`` outputs.
    :param inducing: number of inducing points of each layer.
    :param samples: number of samples that go through the hidden layers.
    :param per_output: whether each output of a hidden layer has a kernel of its own.
    :param beta: weight of the KL in the predictive objective (one layer alone); nothing for the bound.
    :param rows: number of all rows; that of ``x`` if not given.
    """

    jitter: Tensor

    def __init__(
        self,
        x: Tensor,
        *,
        layers: int,
        width: int,
        inducing: int,
        samples: int,
        per_output: bool,
        beta: float | None = None,
        rows: int | None = None,
    ) -> None:
        super().__init__()
        self.samples, self.beta, self.rows = samples, beta, rows or len(x)
        x = x.cpu()
        sizes = (x.shape[-1], *[width] * (layers - 1), 1)
        new = nn.Parameter
        self.z, self.m, self.t = nn.ParameterList(), nn.ParameterList(), nn.ParameterList()
        self.log_lengthscale, self.log_variance = nn.ParameterList(), nn.ParameterList()
        for i, (inputs, outputs) in enumerate(itertools.pairwise(sizes)):
            kernels = outputs if per_output else 1
            self.z.append(new(torch.randn(inducing, inputs)))
            self.m.append(new(torch.zeros(outputs, inducing)))
            self.t.append(new(torch.eye(inducing).repeat(outputs, 1, 1)))
            self.log_lengthscale.append(new(torch.full((kernels, 1, inputs), 0.5 * math.log(inputs))))
            self.log_variance.append(new(torch.zeros(kernels, 1, 1)))
            self.register_buffer(f"projection_{i}", Projection.fit(x, outputs).weight)
            x = x @ self.get_buffer(f"projection_{i}")
        self.log_noise = new(torch.tensor(-2.0))
        self.register_buffer("jitter", 1e-4 * torch.eye(inducing))

    def kernel(self, i: int, x: Tensor, z: Tensor) -> Tensor:
        """Kernel matrix of layer i."""
        a, b = x / self.log_lengthscale[i].exp(), z / self.log_lengthscale[i].exp()
        squared = a.square().sum(-1, keepdim=True) + b.square().sum(-1, keepdim=True).mT - 2 * a @ b.mT
        s = math.sqrt(5.0) * squared.clamp_min(1e-20).sqrt()
        return self.log_variance[i].exp() * (1 + s + s.square() / 3) * torch.exp(-s)

    def layer(self, i: int, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return means and variances ``(D_out, n)`` of layer i without its mean function, and its KL."""
        z, t, m = self.z[i], self.t[i].tril(), self.m[i]
        factor = torch.linalg.cholesky(self.kernel(i, z, z) + self.jitter)
        a = torch.linalg.solve_triangular(factor, self.kernel(i, z, x), upper=False)
        mean = (m.unsqueeze(-2) @ a).squeeze(-2)
        variance = self.log_variance[i].exp()[..., 0] - a.square().sum(-2) + (t.mT @ a).square().sum(-2)
        kl = 0.5 * (m.square().sum() + t.square().sum() - m.numel()) - t.diagonal(dim1=-2, dim2=-1).abs().log().sum()
        return mean, variance.clamp_min(1e-6), kl

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the loss of all rows in nats, estimated from this batch."""
        h, regularizer, top = x, x.new_zeros(()), len(self.z) - 1
        for i in range(top):
            mean, variance, kl = self.layer(i, h.reshape(-1, h.shape[-1]))
            mean, variance = (part.mT.reshape(*h.shape[:-1], -1) for part in (mean, variance))
            mean = mean + h @ self.get_buffer(f"projection_{i}")
            noise = torch.randn(self.samples, *mean.shape[-2:], device=x.device)
            h, regularizer = mean + variance.sqrt() * noise, regularizer + kl
        mean, variance, kl = self.layer(top, h.reshape(-1, h.shape[-1]))
        mean, variance = mean.reshape(-1, len(x)), variance.reshape(-1, len(x))
        noise, regularizer = self.log_noise.exp() + 1e-4, regularizer + kl
        if self.beta is None:
            terms = -0.5 * (((y - mean).square() + variance) / noise + noise.log() + math.log(2 * math.pi))
            return regularizer - terms.mean(0).sum() * self.rows / len(x)
        total = variance + noise
        terms = -0.5 * ((y - mean).square() / total + total.log() + math.log(2 * math.pi))
        return self.beta * regularizer - terms.sum() * self.rows / len(x)
