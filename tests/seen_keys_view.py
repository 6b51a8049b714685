"""A queue's or exchange's memory for deduplication, as tests look at it: nothing else asks for it."""

from __future__ import annotations

from warren.queues.seen_keys import SeenKeys, key_bytes


def maybe_until_ms(seen: SeenKeys, key: str | bytes | int) -> int | None:
    """Return until when `key` is remembered, in ms since the epoch, `NEVER` without end; None: it is not."""
    found = seen._keys.keys.get(key_bytes(key))
    if found is None or found.until_ms <= seen._log.now_ms:
        return None
    return int(found.until_ms)


def maybe_sequence(seen: SeenKeys, producer: str | bytes) -> int | None:
    """Return the highest number that was accepted of `producer`; None when it is not remembered."""
    found = seen._producers.producers.get(key_bytes(producer))
    return None if found is None else int(found.sequence)


def producers(seen: SeenKeys) -> list[tuple[str, int]]:
    """Return the producers with their highest numbers, that which has published last at the end."""
    return [(name[1:].decode(), int(producer.sequence)) for name, producer in seen._producers.producers.items()]
