"""Facts: a model from its config.json, accelerators."""
