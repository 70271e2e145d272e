"""Comparisons with published numbers and with other libraries. Every study prints what it measured."""
