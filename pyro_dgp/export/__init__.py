"""Fits as ArviZ objects."""
