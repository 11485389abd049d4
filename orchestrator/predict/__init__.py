"""Predicts what deployments will hold before anything runs: in closed form (``predictor``,
``steady``) or by simulating whole schedules (``simulate``). ``fit`` calibrates the step model.
"""
