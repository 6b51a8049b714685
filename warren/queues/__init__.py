"""Queues: which messages wait, who gets them, and what their arguments and policies make of that.

The core, and what it is made of:

    queue               publish, deliver, settle, return: the core
    ready_messages      what waits for a consumer            backlog      what was never delivered, in memory or on disk
    returned_messages   what came back                       lanes, held_lanes, held_messages    what waits beside
    delivery            what a channel has out               consumer_groups, turns    who is served next
    arguments, rules    what was asked for                   effective_policy    which of several settings holds
    rule_keeper         carries the rules out: expiry, length_limit, message_deaths and dead_letter, retry, delay,
                        seen_keys (deduplication), key_sharing, delivery_timeout
    offset_queue        messages that stay and are read by offset: streams (`warren.streams`) and claims
"""
