"""Finds the highest load that holds.

Strategies ask for levels, probes show what holds, deployments race, and ``best.py`` has the answer.
"""
