"""Data sets: values, files, splits, sets that dependencies ship; streams of rows that stay on disk; a toy problem."""
