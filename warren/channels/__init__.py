"""The part of a client's state that all protocols share, AMQP 0-9-1 itself, and the broker as one machine.

For every protocol (`tests/architecture/test_imports.py` has the line between the two halves):

    broker          the engine: bytes, time and answers of the disk in; bytes, jobs and notices out
    peer            a client's connection                   session       messages in both directions, in one order
    login, access   its identity and permissions            heartbeats    whether it is still there
    back_pressure   what it waits for, and is told          ending        ends that the broker decides
    partial_input   frames that are not whole yet           inbound       how much is held for them
    publisher       from a message to its queues            origin        where it comes from
    confirms        which publishes are confirmed, when     transaction   the steps of a commit
    consuming       consumers, and getting one message      topology      exchanges, queues and bindings
    direct_session  the broker's own management, which acts for a user with values instead of bytes
    events, tracing, spans, own_messages    messages of the broker itself

AMQP 0-9-1:

    handshake, connection     until it is open, and from then on
    fast_path, content_channel   publishes and acknowledgements, the usual ones
    channel                   the methods on a channel         channel_confirms    basic.ack and basic.nack from us
"""
