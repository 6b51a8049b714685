"""The limits of descriptors for each kind of user."""

from __future__ import annotations

import resource

import pytest

from warren.server.descriptors import HANDLES_MAX, OPEN_MAX, Descriptors, raise_limit
from warren.server.network.admission import Admission
from warren.server.start_errors import StartError


@pytest.mark.parametrize("limit", [128, 200, 256, 1024, 4096, 65536, 1 << 20])
def test_files_come_first_then_http_then_clients(limit: int) -> None:
    found = Descriptors.of(limit)
    assert 0 < found.clients_below < found.http_below < found.limit == limit
    assert limit - found.http_below >= 3 * found.store_handles + 32
    assert found.clients_below >= limit // 2
    assert found.store_handles <= HANDLES_MAX


def test_many_descriptors_are_nearly_all_for_clients() -> None:
    assert Descriptors.of(1 << 20).clients_below > (1 << 20) - 2000


@pytest.mark.parametrize("limit", [0, 3, 20, 40])
def test_hardly_any_are_refused(limit: int) -> None:
    with pytest.raises(StartError, match=f"{limit} open files"):
        Descriptors.of(limit).clients_max()


def test_a_connection_with_a_high_number_is_one_too_many_and_not_counted() -> None:
    admission = Admission(10, 10, 100, 50)
    assert admission.enter("192.0.2.1", 49, 0.0)
    assert not admission.enter("192.0.2.1", 50, 0.0)
    assert admission.refusal == "too many descriptors are in use"
    assert admission.unauthenticated == 1
    for descriptor in range(9):
        assert admission.enter("192.0.2.1", descriptor, 0.0)
    assert not admission.enter("192.0.2.1", 9, 0.0)
    assert admission.refusal == "too many logins"


def test_who_may_have_any_number_and_gets_none_of_them_has_what_macos_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = (256, resource.RLIM_INFINITY)

    def set_limits(which: int, wanted: tuple[int, int]) -> None:
        nonlocal limits
        if wanted[0] == resource.RLIM_INFINITY:
            raise ValueError("current limit exceeds maximum limit")
        limits = wanted

    monkeypatch.setattr(resource, "getrlimit", lambda which: limits)
    monkeypatch.setattr(resource, "setrlimit", set_limits)
    assert raise_limit() == Descriptors.of(OPEN_MAX)
    assert limits == (OPEN_MAX, resource.RLIM_INFINITY)
