"""The cluster on Ray: the only code that imports ray."""
