"""Benchmarks: Warren and RabbitMQ under the same load on the same machine in the same run.

`make bench` calls `run.py`. `make bench-backlog` calls `backlog.py`: Warren alone with millions of messages waiting.
"""
