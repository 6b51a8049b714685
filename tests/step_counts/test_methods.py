"""No input makes a turn long: the cost of each method with n and with 2n objects, counted in steps.

The engine runs from its source, with its steps counted, in a process of its own (`step_counts.__main__`), whatever is
installed. With many objects, a method either takes more turns that are not longer, or `cases` says that its turn may
grow with the number of objects. No turn grows faster.
"""

from __future__ import annotations

import pytest

from step_counts.cases.case import BOUNDED, LINEAR, SIZE, TIDIED, Case
from step_counts.measured import measured
from step_counts.method_cases import CASES
from warren.amqp import methods as m

# Steps of the longest turn with a share of 100 of long work: a fortieth of what a broker does.
TURN_MAX = 3000
GROWTH_MAX = 2.3
SLACK = 20  # steps
# How many steps the longest turn may grow by for each thing more.
AT_ONCE = {BOUNDED: 0.25, TIDIED: 3}

# The limit of the broker's own writes in the log in one turn: its share, one message, and its extras.
OWN_BYTES_MAX = (32 << 10) + (16 << 10)

Figures = dict[str, list[tuple[int, int, int, int]]]


@pytest.fixture(scope="module")
def figures() -> Figures:
    return measured("step_counts")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_work_grows_no_faster_than_what_there_is(case: Case, figures: Figures) -> None:
    base, one, two = figures[case.name]
    assert two[1] - base[1] <= GROWTH_MAX * (one[1] - base[1]) + SLACK, "more than linear in all"
    if case.growth == LINEAR:
        assert two[0] - base[0] <= GROWTH_MAX * (one[0] - base[0]) + SLACK, "the longest turn grows faster than linear"
    else:
        assert two[0] <= TURN_MAX
        assert two[0] - one[0] <= AT_ONCE[case.growth] * SIZE, "the longest turn grows"


@pytest.mark.parametrize("case", [case for case in CASES if case.is_paced], ids=lambda case: case.name)
def test_a_turn_writes_no_more_than_its_share(case: Case, figures: Figures) -> None:
    assert max(written for _, _, _, written in figures[case.name]) <= OWN_BYTES_MAX


# What servers send, what clients answer to it, and tune-ok, which is measured with open.
_NOT_MEASURED = {
    m.ConnectionStart, m.ConnectionSecure, m.ConnectionSecureOk, m.ConnectionTune, m.ConnectionTuneOk,
    m.ConnectionOpenOk, m.ConnectionBlocked, m.ConnectionUnblocked, m.ConnectionUpdateSecretOk, m.ChannelOpenOk,
    m.ChannelFlowOk, m.AccessRequestOk, m.ExchangeDeclareOk, m.ExchangeDeleteOk, m.ExchangeBindOk, m.ExchangeUnbindOk,
    m.QueueDeclareOk, m.QueueBindOk, m.QueueUnbindOk, m.QueuePurgeOk, m.QueueDeleteOk, m.BasicQosOk, m.BasicConsumeOk,
    m.BasicReturn, m.BasicDeliver, m.BasicGetOk, m.BasicGetEmpty, m.BasicRecoverOk, m.ConfirmSelectOk, m.TxSelectOk,
    m.TxCommitOk, m.TxRollbackOk,
}  # fmt: skip


def test_every_method_that_clients_send_is_measured() -> None:
    measured = {case.method for case in CASES}
    assert {spec.type for spec in m.METHODS.values()} - _NOT_MEASURED == measured - {None}
