"""AMQP 1.0 for clients of the same exchanges and queues.

    peer            a connection, and its states            session         links, windows and credit
    values          types: bytes to values and back         links           a link of either kind
    performatives   frames                                  attaching       the requests of an attach
    addresses       the meaning of an address                source          where a receiver begins, and what it wants
    conversion      messages of 0-9-1 and back              filters, selectors, expressions    which messages
    originals       parts that 0-9-1 cannot express         ledger, dispositions    deliveries and their outcomes
    management      the node `/management`

`docs/amqp10.md` describes the behaviour for clients, `docs/amqp10-conformance.md` the tests that show it.
"""
