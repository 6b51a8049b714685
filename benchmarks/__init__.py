"""Benchmarks: Warren and RabbitMQ under the same load on the same machine in the same run.

`make bench` calls `run.py`.
"""
