"""What requests contain: drawn messages, conversations, prompts from files.

The registry of these kinds is ``spec/load.py: WORKLOADS``, because an experiment file names them.
"""
