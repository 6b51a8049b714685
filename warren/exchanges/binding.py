"""A binding: makes an exchange pass on messages that match a binding key and arguments to a destination.

1. Identity is (source, destination, routing_key, arguments); arguments compare as the encoded bytes. Two bindings with
   the same identity are equal, so a binding is its own key in a dict: a million of them need no tuple each.
2. A bound binding is a link of two chains of its source exchange: the bindings to the same destination, and
   the bindings that its exchange type looks up together (the same routing key). The links are in the bindings
   themselves: a hundred thousand bindings need no list or set, and removing one costs the same wherever it is.
3. An unbound binding is in no chain and refers to no other binding.

A chain is known by its first binding. The ``previous`` of the first is the last, the ``next`` of the last is
None.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from typing import TYPE_CHECKING
from urllib.parse import quote_plus

from warren.amqp.field_table import EMPTY_TABLE, Table, decode_table
from warren.exchanges.stable_hash import stable_hash
from warren.queues.destination import Destination

if TYPE_CHECKING:
    from warren.exchanges.exchange import Exchange


class Binding:
    """One binding. ``arguments`` is an encoded field table with its length prefix."""

    def __init__(self, source: Exchange, destination: Destination, routing_key: str, arguments: bytes) -> None:
        self.source = source
        self.destination = destination
        self.routing_key = routing_key
        # Most bindings have no arguments: they share one object.
        self.arguments = EMPTY_TABLE if arguments == EMPTY_TABLE else arguments
        self.next_to_destination: Binding | None = None
        self.previous_to_destination: Binding | None = None
        self.next_in_bucket: Binding | None = None
        self.previous_in_bucket: Binding | None = None

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Binding)
            and self.source is other.source
            and self.destination is other.destination
            and self.routing_key == other.routing_key
            and self.arguments == other.arguments
        )

    def __hash__(self) -> int:
        return hash((self.destination, self.routing_key, self.arguments))

    @property
    def table(self) -> Table:
        """The decoded arguments, decoded again at each call.

        Raises:
            ConnectionException: 501, a key is not UTF-8.
        """
        return decode_table(self.arguments)

    @property
    def properties_key(self) -> str:
        """The name of this binding between its two ends in the management API.

        ``~`` without key and arguments, else the quoted routing key, with ``~`` and a hash when there are
        arguments.
        """
        quoted = quote_plus(self.routing_key).replace("~", "%7E")
        if self.arguments != EMPTY_TABLE:
            digest = int(stable_hash(self.arguments)).to_bytes(4, "big")
            return quoted + "~" + urlsafe_b64encode(digest).decode().rstrip("=")
        return quoted or "~"


def chained_to_destination(first: Binding | None, binding: Binding) -> Binding:
    """Append `binding` to the chain of its destination and return the first of the chain."""
    if first is None:
        binding.previous_to_destination = binding
        return binding
    last = first.previous_to_destination
    assert last is not None
    last.next_to_destination = binding
    binding.previous_to_destination = last
    first.previous_to_destination = binding
    return first


def unchained_to_destination(first: Binding, binding: Binding) -> Binding | None:
    """Take `binding` out of the chain of its destination and return the first of what is left."""
    before = binding.previous_to_destination
    after = binding.next_to_destination
    if binding is first:
        if after is not None:
            after.previous_to_destination = before
        first_left = after
    else:
        assert before is not None
        before.next_to_destination = after
        if after is not None:
            after.previous_to_destination = before
        else:
            first.previous_to_destination = before
        first_left = first
    binding.next_to_destination = None
    binding.previous_to_destination = None
    return first_left


def chained_in_bucket(first: Binding | None, binding: Binding) -> Binding:
    """Append `binding` to the chain of a bucket and return the first of the chain."""
    if first is None:
        binding.previous_in_bucket = binding
        return binding
    last = first.previous_in_bucket
    assert last is not None
    last.next_in_bucket = binding
    binding.previous_in_bucket = last
    first.previous_in_bucket = binding
    return first


def unchained_in_bucket(first: Binding, binding: Binding) -> Binding | None:
    """Take `binding` out of the chain of a bucket and return the first of what is left."""
    before = binding.previous_in_bucket
    after = binding.next_in_bucket
    if binding is first:
        if after is not None:
            after.previous_in_bucket = before
        first_left = after
    else:
        assert before is not None
        before.next_in_bucket = after
        if after is not None:
            after.previous_in_bucket = before
        else:
            first.previous_in_bucket = before
        first_left = first
    binding.next_in_bucket = None
    binding.previous_in_bucket = None
    return first_left


def append_bucket(first: Binding | None, found: list[Destination]) -> None:
    """Append the destination of each binding of a bucket to `found`."""
    binding = first
    while binding is not None:
        found.append(binding.destination)
        binding = binding.next_in_bucket
