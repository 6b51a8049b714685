"""aio-pika: asyncio, robust connections, its patterns."""
