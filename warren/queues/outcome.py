"""What a queue does with a message that is published to it. Where several get it, the greatest outcome counts."""

from __future__ import annotations

from typing import Final

ACCEPTED: Final = 0
REPEATED: Final = 1  # dropped: it was accepted before
REFUSED: Final = 2  # it would be too much, or nothing may be published there: the publisher gets a basic.nack
