"""Measurements beside the load: GPUs through NVML, engines through their own /metrics."""
