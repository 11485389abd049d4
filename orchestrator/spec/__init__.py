"""The experiment file: typed, strict, all errors at once."""
