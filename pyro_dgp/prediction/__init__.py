"""Predictive distributions, their scores, and the distance between two of them."""
