"""Wires: request body out, stream bytes to token events in; one file per API."""
