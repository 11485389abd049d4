"""The highest load that holds: strategies that ask for levels, what probes show, races, and the answer
(``best.py``).
"""
