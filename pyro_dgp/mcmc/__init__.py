"""What MCMC on the exact prior needs: whitening, and prediction from draws."""

from pyro_dgp.mcmc.predict import predict_mcmc
from pyro_dgp.mcmc.whitening import WhitenedModel, Whitening, whitened

__all__ = ["WhitenedModel", "Whitening", "predict_mcmc", "whitened"]
