"""Queues: the messages that wait, the consumers that get them, and the effects of arguments and policies.

The core, and its parts:

    base_queue          what all kinds of queues have, and are asked
    queue               publish, deliver, settle, return: the core
    ready_messages      messages waiting for a consumer      backlog      those never delivered, in memory or on disk
    returned_messages   those that came back                 lanes, held_lanes, held_messages    held messages
    delivery            unacked messages of a channel        consumer_groups, turns    which consumer is next
    dispatch            which consumer takes which message: in order, by level; key_sharing, selective: the others
    arguments, rules    the requested settings               effective_policy    which of several settings applies
    rule_keeper         carries the rules out: expiry, length_limit, message_deaths and dead_letter, retry, delay,
                        seen_keys (deduplication), delivery_timeout, commit_gate
    offset_queue        messages that stay and are read by offset: streams (`warren.streams`) and claims
"""
