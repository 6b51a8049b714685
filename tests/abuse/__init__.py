"""Hostile peers beside an innocent one: their actions, the cost for the other, and the requirements."""
