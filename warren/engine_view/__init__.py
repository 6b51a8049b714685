"""The engine as its users outside see it: rows of values, and commands. Management, metrics and links use no other way.

1. Nothing that leaves the view belongs to the engine. A row is a record of values, made when it is asked for.
2. A list is a list of refs (`engine_view/refs.py`): a row is made of each when it is written, so a long list costs a
   pointer for each object. An object that is gone by then has no row; `is_gone` tells.
3. A call does a bounded piece of work, or says that it is proportional to a list of its arguments. Callers give way
   between two calls: nothing here waits.
4. The view decides nothing about rights: callers ask for the objects that a user may see, and act in a user's session.

Refs, rows, counters and sort keys are all that a view of an engine in another process, or of several engines, has to
send.
"""
