"""Turns an experiment file into deployments and points: expansion, identity, feasibility."""
