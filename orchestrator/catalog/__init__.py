"""Facts about models (from their config.json) and accelerators (from data sheets), and what follows
from both: bytes of weights and KV cache on every rank (memory.py).
"""
