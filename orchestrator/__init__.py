"""Experiment orchestrator for LLM serving: one YAML file in, Parquet and an answer with its confidence out."""

__version__ = "0.1.0"
