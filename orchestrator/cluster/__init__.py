"""The only code that imports ray: placement, node agents, client actors."""
