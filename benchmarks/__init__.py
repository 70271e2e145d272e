"""Comparisons with published numbers and with other libraries; every script prints what it measured."""
