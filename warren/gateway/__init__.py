"""Clients of a node that does not lead: their bytes go to the leader and back."""
