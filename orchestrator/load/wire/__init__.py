"""The APIs that requests are written for and whose streams are read."""
