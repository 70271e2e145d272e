"""What a wheel must do in an environment that holds it and what it depends on: ``make release-check`` runs this there.

It imports the package, fits two layers, predicts, and saves and loads the fit.
"""

import sys
import tempfile
from pathlib import Path

import torch

import pyro_dgp
from pyro_dgp import ELBO, DeepGP, InducingPoints, MonteCarlo, Variational, fit, predict


def main() -> None:
    """Raise where something is wrong; print the version and the fit where all is well."""
    where = Path(pyro_dgp.__file__)
    assert where.is_relative_to(sys.prefix), f"{where} is not the installed package"
    assert (where.parent / "py.typed").exists(), "the wheel lacks py.typed"
    missing = [name for name in pyro_dgp.__all__ if not hasattr(pyro_dgp, name)]
    assert not missing, missing

    torch.manual_seed(0)
    x = torch.linspace(-1, 1, 60)[:, None]
    y = torch.sin(5 * x[:, 0]) + 0.1 * torch.randn(60)
    guide = Variational(DeepGP(x, layers=2, width=1), InducingPoints(15), MonteCarlo(5))
    guide.initialize(x, y)
    result = fit(ELBO(num_data=60)(guide.model, guide), x, y, steps=300)
    error = float((predict(guide, x).mean - y).square().mean().sqrt())
    assert error < 0.3, f"two layers miss a sine by {error:.2f}"

    with tempfile.TemporaryDirectory() as folder:
        torch.save({"model": guide.model.state_dict(), "guide": guide.state_dict()}, Path(folder) / "fit.pt")
        saved = torch.load(Path(folder) / "fit.pt")
    again = Variational(DeepGP(x, layers=2, width=1), InducingPoints(15), MonteCarlo(5))
    again.model.load_state_dict(saved["model"])
    again.load_state_dict(saved["guide"])
    assert torch.equal(again.model.likelihood.variance, guide.model.likelihood.variance)
    print(f"pyro_dgp {pyro_dgp.__version__}: loss {result.losses[0]:.2f} to {result.losses[-1]:.2f}, error {error:.2f}")


if __name__ == "__main__":
    main()
