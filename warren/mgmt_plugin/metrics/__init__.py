"""Counters over time, and the pages of Prometheus."""
