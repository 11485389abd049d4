"""Facts: a model from its config.json (models.py), accelerators from their vendors' data sheets (accelerators.py), and
what follows from both: bytes of weights and of KV cache on every rank (memory.py)."""
