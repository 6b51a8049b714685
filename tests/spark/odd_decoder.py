"""A decoder that fails. Executors import this module, so it imports only what executors have."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from warren.lake.decoder import Decoded, MessageDecoder


class Odd(MessageDecoder):
    """Fails in the tasks, not on the driver."""

    def decode(self, columns: pa.Schema, messages: Any) -> Decoded:
        raise RuntimeError("odd")
