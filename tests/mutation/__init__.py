"""Breaks the rules of the engine at random, one place at a time: each time a test has to fail.

`mutants.py` finds the mutants, `reached.py` the tests that reach a statement, `trial.py` runs them on a broken copy.
`plugin.py` is the plugin of pytest for both, `__main__.py` the command.
"""
