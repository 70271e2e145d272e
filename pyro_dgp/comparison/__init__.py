"""The comparison of several methods on one data set, and the command line."""
