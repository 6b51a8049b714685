"""Unit tests. A package, so that no folder of it is taken for a library of the same name, as `stomp` is one."""
