"""Records to metrics; every formula stands in a docstring."""
