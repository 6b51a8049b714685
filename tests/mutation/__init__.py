"""Breaks the rules of the engine at random, one place at a time: each time a test has to fail.

`mutants.py` says what there is to break, `reached.py` which tests reach a statement, `trial.py` runs them on a copy
that is broken, `plugin.py` is what pytest needs for both, `__main__.py` the command.
"""
