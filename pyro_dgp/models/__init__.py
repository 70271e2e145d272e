"""Generative models, and priors for their hyperparameters."""
