"""Virtual hosts: their topology, policies, parameters and limits."""
