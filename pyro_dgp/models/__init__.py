"""The zoo's generative models, and priors for their hyperparameters."""
