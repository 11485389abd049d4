"""Runs a sweep. To follow one, read in this order:

1. ``sweep``: decides which deployment starts next, and when the sweep is over. It uses ``todo``
   (what is left to measure of a deployment), ``race`` (which deployments compete), ``admission``
   (what fits where, and which nodes to ask for) and ``breakers`` (which nodes rest, and when the
   sweep pauses).
2. ``run_launch``: one launch from placement to release. ``launch`` places, starts and stops its
   engines; ``replicas`` are those engines while they are loaded.
3. ``measure``: one attempt at a load point; ``early_end`` ends it once a probe knows enough.
4. ``commit``: what is stored of attempts and launches.

All of these share a ``context`` (plan, cluster, store) with its ``state`` (nodes, time and money in
use).

Without a sweep: ``endpoint`` and ``find_capacity`` measure a server that is already up, ``probe``
finds out how to talk to it. ``examine`` and ``doctor`` check a cluster before a sweep.
"""
