"""Refs stand for objects of the engine: keep, compare, hash them, and give them back to the view. Nothing else."""

from __future__ import annotations

from typing import NewType

QueueRef = NewType("QueueRef", object)
ExchangeRef = NewType("ExchangeRef", object)
DestinationRef = NewType("DestinationRef", object)  # a queue or an exchange
BindingRef = NewType("BindingRef", object)
ConnectionRef = NewType("ConnectionRef", object)
ChannelRef = NewType("ChannelRef", object)
ConsumerRef = NewType("ConsumerRef", object)
SubscriptionRef = NewType("SubscriptionRef", object)
GroupRef = NewType("GroupRef", object)  # of the consumers of a stream
