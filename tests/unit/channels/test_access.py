"""Permissions that are not any: nothing comes of them."""

from __future__ import annotations

import pytest
from engine_harness import Harness
from peer_frames import USER

from warren.vhosts.metadata import PermissionPut, TopicPermissionPut

BROKEN = "("


@pytest.mark.parametrize(
    "put",
    [
        PermissionPut(USER, "/", BROKEN, "", ""),
        PermissionPut(USER, "/", "", BROKEN, ""),
        PermissionPut(USER, "/", "", "", BROKEN),
        TopicPermissionPut(USER, "/", "amq.topic", BROKEN, ""),
        TopicPermissionPut(USER, "/", "amq.topic", "", BROKEN),
        TopicPermissionPut(USER, "/", "amq.topic", "{username}(", ""),
    ],
)
@pytest.mark.parametrize("is_connected", [True, False])
def test_what_is_no_pattern_is_refused_and_changes_nothing(
    put: PermissionPut | TopicPermissionPut, is_connected: bool
) -> None:
    harness = Harness()
    client = harness.channel() if is_connected else None
    access = harness.broker.access
    before = dict(access.permissions), dict(access.topic_permissions)
    with pytest.raises(ValueError, match="missing"):
        harness.broker.administer(put)
    assert (access.permissions, access.topic_permissions) == before
    if client is not None:
        client.declare("still mine")
