"""Predicts what deployments will hold before anything runs: a forecast that orders the queue and is
shown beside what was measured. ``simulation`` in contrast runs a whole sweep and stores its points.

It predicts in closed form (``predictor``, ``steady``) or by simulating whole schedules
(``simulate``). ``fit`` calibrates the step model.
"""
