"""Models of a user's own: a file as the command line takes it."""

import pyro
import torch
from pyro import distributions as dist
from pyro.nn import PyroModule, PyroSample

from pyro_dgp import RBF, Bernoulli, Gaussian, GaussianProcess, Matern52, Poisson, Projection, Softmax


class Skip(PyroModule):
    """Two layers, the second of which sees the inputs again; a hyperprior; a second likelihood that sees the hidden layer alone."""

    def __init__(self, x, width=2):
        super().__init__()
        inputs = x.shape[-1]
        self.hidden = GaussianProcess(Matern52(ard=inputs), mean=Projection.fit(x, width), num_outputs=width)
        self.top, self.side = GaussianProcess(RBF(ard=width + inputs)), GaussianProcess(RBF(ard=width))
        self.top.kernel.lengthscale = PyroSample(dist.LogNormal(0.0, 1.0).expand([width + inputs]).to_event(1))
        self.likelihood, self.sign = Gaussian(), Bernoulli("logit")

    def forward(self, x, y=None):
        latent = pyro.sample("latent", self.hidden(x))
        positive = None if y is None else (y > 0).to(y)
        pyro.sample("positive", self.sign(self.side(latent)), obs=positive)
        both = torch.cat([latent, x.expand(*latent.shape[:-1], x.shape[-1])], -1)
        return pyro.sample("target", self.likelihood(self.top(both)), obs=y)


class Heavy(PyroModule):
    """One layer and a Student likelihood, written as two plain sites, with priors on every hyperparameter."""

    def __init__(self, x):
        super().__init__()
        self.gp = GaussianProcess(RBF(ard=x.shape[-1]))
        self.gp.kernel.lengthscale = PyroSample(dist.LogNormal(0.0, 0.5).expand([x.shape[-1]]).to_event(1))
        self.gp.kernel.variance = PyroSample(dist.LogNormal(0.0, 0.5))
        self.scale = PyroSample(dist.LogNormal(-1.0, 0.5))

    def forward(self, x, y=None):
        f = pyro.sample("f", self.gp(x)).squeeze(-1)
        return pyro.sample("y", dist.StudentT(4.0, f, self.scale).to_event(1), obs=y)


class Classes(PyroModule):
    """One layer and classes."""

    def __init__(self, x):
        super().__init__()
        self.gp, self.likelihood = GaussianProcess(RBF(ard=x.shape[-1])), Bernoulli()

    def forward(self, x, y=None):
        return pyro.sample("y", self.likelihood(self.gp(x)), obs=y)


class Counts(PyroModule):
    """One layer and counts, whose exposures are one unless they are given."""

    def __init__(self, x):
        super().__init__()
        self.gp, self.likelihood = GaussianProcess(RBF(ard=x.shape[-1])), Poisson()

    def forward(self, x, y=None, area=None):
        return pyro.sample("y", self.likelihood(self.gp(x), exposure=area), obs=y)


class Required(Counts):
    """Counts whose exposures must be given."""

    def forward(self, x, y, area):
        return super().forward(x, y, area)


class FourClasses(PyroModule):
    """One layer and four classes."""

    def __init__(self, x):
        super().__init__()
        self.gp, self.likelihood = GaussianProcess(RBF(ard=x.shape[-1]), num_outputs=4), Softmax(4)

    def forward(self, x, y=None):
        return pyro.sample("y", self.likelihood(self.gp(x)), obs=y)


class Switch(PyroModule):
    """A latent site that is discrete."""

    def __init__(self, x):
        super().__init__()
        self.gp, self.likelihood = GaussianProcess(RBF(ard=x.shape[-1])), Gaussian()

    def forward(self, x, y=None):
        z = pyro.sample("z", dist.Bernoulli(0.5))
        return pyro.sample("y", self.likelihood(self.gp(x + z)), obs=y)


class Breaks(PyroModule):
    def __init__(self, x):
        raise RuntimeError("no such thing")


constant = 3


class WithMovingEnd(PyroModule):
    """A noise whose upper end is random too: guides fit it, and samplers need a fixed support."""

    def __init__(self, x):
        super().__init__()
        self.gp, self.likelihood = GaussianProcess(RBF()), Gaussian()

    def forward(self, x, y=None):
        end = pyro.sample("end", dist.LogNormal(0.0, 0.1))
        noise = pyro.sample("noise", dist.Uniform(0.0, end))
        f = pyro.sample("f", self.gp(x))[..., 0]
        return pyro.sample("y", dist.Normal(f, noise.unsqueeze(-1)).to_event(1), obs=y)
