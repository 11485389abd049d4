"""What the hardware says of itself: GPUs through NVML."""
