"""What can be wrong with a fit: the table of symptoms, a function for each, and what runs them."""
