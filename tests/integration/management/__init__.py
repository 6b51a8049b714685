"""The management API of a running broker."""
