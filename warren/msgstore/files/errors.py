"""What the disk can do to the store, in two kinds: what passes, and what does not."""

from __future__ import annotations


class StoreError(Exception):
    """The store could not do what it was asked to. The text is one line that names the file and the reason."""


class StoreFullError(StoreError):
    """Something has run out that others may give back: space, quota, descriptors. The same job works again later."""


class StoreFailedError(StoreError):
    """The disk has failed, or said so: what was written before may be lost. The process has to stop."""
