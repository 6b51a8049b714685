"""MQTT 3.1, 3.1.1 and 5.0 for clients of the same exchanges and queues.

    peer          a connection, and its states           session       what its client publishes and is sent
    packets       bytes to values and back               sessions      those kept without a connection, and wills
    topics        topics and filters as routing keys     subscriber    subscriptions that need no queue
    conversion    messages to PUBLISH and back           retaining     retained messages
    ledger        deliveries and their packet ids        receipts      PUBACK and PUBREC
    outline, fanout    what is the same for all clients that get a message

`docs/mqtt.md` says what clients may expect, `docs/mqtt-conformance.md` which test shows it.
"""
