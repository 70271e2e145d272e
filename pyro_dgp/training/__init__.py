"""Training: the loop, validation on held-out rows, compiled steps."""
