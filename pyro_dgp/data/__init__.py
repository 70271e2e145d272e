"""Data sets, streams of rows that stay on disk, and a toy problem."""
