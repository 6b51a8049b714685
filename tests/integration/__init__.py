"""Tests against real databases and processes."""
