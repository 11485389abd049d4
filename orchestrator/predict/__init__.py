"""What deployments will hold, before anything runs: closed form, whole simulations, fit."""
