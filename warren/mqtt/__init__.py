"""MQTT 3.1, 3.1.1 and 5.0 for clients of the same exchanges and queues.

    peer          a connection, and its states           session       its messages and subscriptions
    packets       bytes to values and back               sessions      those kept without a connection, and wills
    topics        topics and filters as routing keys     subscriber    subscriptions that need no queue
    conversion    messages to PUBLISH and back           retaining     retained messages
    ledger        deliveries and their packet ids        receipts      PUBACK and PUBREC
    outline, fanout    the parts that are the same for all receivers of a message

`docs/mqtt.md` describes the behaviour for clients, `docs/mqtt-conformance.md` the tests that show it.
"""
