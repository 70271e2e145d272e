"""Code that several studies share: timing, models, peers in GPyTorch, experiments over data sets, records, tables, drawing."""
