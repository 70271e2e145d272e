"""Draws of whole functions from any fit, and what they give: joint distributions of rows."""
