"""Guides: an effect handler that joins a model, variational processes and a propagation."""
