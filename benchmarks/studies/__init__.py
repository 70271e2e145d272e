"""One study a file. ``python -m benchmarks.studies.NAME --help`` lists the options of a study."""
