"""Experiment file to deployments and points: expansion, identity, feasibility."""
