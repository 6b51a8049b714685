"""How a member comes to lead: there are four ways.

    founding      etcd has no record, this node may begin one, and its log is empty: at once
    election      its leader is gone, or the leader on record is this node in an earlier life: after a pre-vote
                  (``pre_vote.py``), the nodes with the longest logs first
    transfer      the previous leader has handed over to it: the record names it
    recovery      an administrator makes its data the truth, and accepts what may be lost

1. A node leads an epoch only by a change of the record that this process made or saw made, and a process leads once.
   If the record names the node from an earlier life, the node stands again: unsynced writes of that life are gone.
2. It stops acknowledging before it stands. While its change is under way it answers no beacon.
3. A replica stands when its leader is gone (``following.py``). It begins the epoch when the promise of its last answer
   is over. It begins at once if the previous leader is known not to serve: it was this node, it handed over, or its
   process is gone. If that process runs after all, two nodes may deliver for `limit_s`, and no confirm is lost.
4. A node does not lead with a restored directory (``own_directory.py``), nor while its disk hangs.
5. A recovery begins an epoch far beyond all that are known here, since other nodes may have begun some. It waits for
   etcd for a moment at most. It is cancelled when a leader answers, so it loses nothing that this leader confirms.

No I/O and no clock: times are arguments, in seconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from warren.cluster.actions import Actions
from warren.cluster.events import AskPositions, RecoveryRequested, RefuseCommand, Standing
from warren.cluster.following import Following
from warren.cluster.own_directory import OwnDirectory
from warren.cluster.pre_vote import ASKING_S, PreVote, positions
from warren.cluster.record import LeaderBy, Record, Refusal, Replica, first, left, made_anew, recovered, taken_over
from warren.cluster.record_view import RecordView
from warren.cluster.timers import NEVER, Timers


@dataclass(frozen=True, slots=True)
class Founding:
    """The values of a new store, for a node with an empty directory when etcd has no record."""

    store: str
    min_in_sync: int


class Candidacy:
    """The ways in which `me` may come to lead. `founding` and `recovery` are those of `Member`."""

    def __init__(
        self,
        me: Replica,
        now_s: float,
        *,
        view: RecordView,
        directory: OwnDirectory,
        following: Following,
        founding: Founding | None,
        recovery: Founding | None,
        timers: Timers,
        actions: Actions,
    ) -> None:
        self.is_standing = False
        self._me = me
        self._view = view
        self._directory = directory
        self._following = following
        self._founding = founding
        self._recovery = recovery
        self._timers = timers
        self._actions = actions
        self._recovers_beyond: int | None = None
        self._pre_vote: PreVote | None = None
        self._pre_votes = 0
        self._outrun_s: float | None = None  # since when one with a longer log has answered
        self._asks_at_s = now_s  # not earlier
        self._stood: set[int] = set()  # the epochs that this life has stood for
        self._has_led = False

    # --- questions ------------------------------------------------------------------------------------------------

    def known_epoch(self) -> int:
        """Return the greatest epoch that the log, the record or a leader has told of."""
        record = self._view.record
        return max(self._directory.position.epoch, 0 if record is None else record.epoch, self._following.epoch)

    def may_lead(self, record: Record) -> bool:
        """Tell whether the record makes this process the leader of an epoch that was not led before."""
        if record.leader != self._me or record.epoch <= self._directory.position.epoch:
            return False
        if self._directory.trouble:
            return False  # a leader handed over to this node, and then its disk was replaced by an older copy
        if self._following.epoch >= record.epoch:
            return False
        # If the first read finds a transfer, it may have been to an earlier life, which has led since then.
        is_new = self._view.first_epoch is not None and record.epoch > self._view.first_epoch
        return is_new and (record.epoch in self._stood or record.by is LeaderBy.TRANSFER)

    def leads_from_s(self, now_s: float, record: Record) -> float:
        """Return the time from which no earlier leader serves, for a record that makes this node the leader."""
        is_alone = record.by in (LeaderBy.FIRST, LeaderBy.TRANSFER) or self._following.is_refused or self._has_led
        return now_s if is_alone else self._following.released_at_s()

    def wake_times(self) -> list[float]:
        """Return when time alone changes something."""
        times = [self._stand_at_s(), self._ask_others_at_s(), self.doubt_at_s()]
        if self._pre_vote is not None:
            times += [self._pre_vote.asked_s + self._timers.ask_s, self._pre_vote.asked_s + ASKING_S]
        return times

    def doubt_at_s(self) -> float:
        """Return when to read the record again, since a watch may have reported nothing.

        A node that may not stand and hears no leader may have been added to the set without knowing it. It may even be
        the last replica of the set.
        """
        if not self._view.is_read or self._stand_at_s() != NEVER:
            return NEVER
        return max(self._following.heard_s, self._view.read_s) + self._timers.grace_s

    def wanted(self, now_s: float) -> Record | None:
        """Return the record that this node wants instead of the known one; None while it has to wait."""
        record = self._view.record
        if self._recovers_beyond is not None:
            return self._recovered(self._recovers_beyond)
        if self._directory.trouble and record is not None:
            change = left(record, self._me)
            return change if isinstance(change, Record) else None
        if self._directory.is_stuck(now_s):
            return None
        if record is None:
            return self._founded() if now_s >= self._stand_at_s() else None
        return self._elected(now_s, record)

    # --- events ---------------------------------------------------------------------------------------------------

    def follows(self) -> None:
        """Note that another node leads, as far as is known."""
        self.is_standing = False
        self._outrun_s = None

    def hears(self) -> None:
        """Note that the leader is there, and drop the pre-vote and the recovery: neither is needed."""
        self.is_standing = False
        self._pre_vote = self._outrun_s = None
        if self._recovers_beyond is not None:
            self._recovers_beyond = None
            self._actions.report("nothing is recovered: a leader answers")

    def told(self, number: int, node: str, replica: Replica | None, standing: Standing | None) -> None:
        """Take an answer about a log."""
        if self._pre_vote is not None and self._pre_vote.number == number:
            self._pre_vote.take(node, replica, standing)

    def asked_all(self, number: int) -> None:
        """Note that no more answers come."""
        if self._pre_vote is not None and self._pre_vote.number == number:
            self._pre_vote.is_over = True

    def recover(self, now_s: float, request: RecoveryRequested) -> None:
        """Make this node's data the truth, or say why not."""
        reason = self._why_no_recovery(now_s)
        if not reason and not request.accepts_loss:
            record, position = self._view.record, self._directory.position
            known = "no record" if record is None else f"{record.leader.node} as the leader of epoch {record.epoch}"
            reason = (
                f"etcd has {known}. This node's log has epoch {position.epoch} and ends at {position.lsn}: "
                "what another node confirmed beyond that is lost for good. Compare all nodes (`warren ctl cluster "
                "status` at each), stop the others, and say --accept-loss at the one with the greatest epoch, and "
                "among these the one that has synced most"
            )
        if reason:
            self._actions.add(RefuseCommand(reason))
        else:
            self._recovers_beyond = request.beyond

    # --- founding and recovery ------------------------------------------------------------------------------------

    def _founded(self) -> Record | None:
        is_empty = self._directory.position.lsn == 0
        if self._founding is None and self._recovery is None and is_empty:
            self._actions.report("etcd has no record of a store: the node that cluster_first_node names begins one")
            return None
        if self._founding is None or not is_empty:
            self._actions.report("etcd has no record of this store: `warren ctl cluster recover` makes one")
            return None
        change = first(self._founding.store, self._me, self._founding.min_in_sync)
        self._stand(change)
        return change

    def _recovered(self, beyond: int) -> Record:
        self._recovers_beyond = None
        assert self._recovery is not None
        record, epoch = self._view.record, self.known_epoch() + beyond
        if record is None:
            change = made_anew(self._recovery.store, self._me, epoch, self._recovery.min_in_sync)
        else:
            change = recovered(record, self._me, epoch)
        self._stand(change)
        self._has_led = False
        return change

    def _why_no_recovery(self, now_s: float) -> str:
        leader = self._following.answering(now_s)
        if leader is not None:
            return f"{leader.node} leads, and answers: nothing needs recovery"
        if self._recovery is None:
            return "this node has no messages: use the node with the longest log"
        if not self._view.is_read or self._view.is_swapping:
            return "etcd has not answered yet, or this node stands for election: try again"
        if self._view.is_gone:
            return "etcd had a record when this node was started, and has lost it: restart the node, and try again"
        if self._view.is_refuted:
            return "etcd has another record than this node knows, an older one: restart the node, and try again"
        return ""

    # --- election -------------------------------------------------------------------------------------------------

    def _elected(self, now_s: float, record: Record) -> Record | None:
        """Return the record in which this node leads, when it is time to stand."""
        vote = self._maybe_pre_vote(now_s, record)
        if vote is None:
            return None
        if not vote.is_outrun(record, self._me, self._directory.position):
            self._outrun_s = None
        elif self._outrun_s is None:
            self._outrun_s = vote.asked_s
        if now_s < self._stand_at_s():
            return None
        reason = self._why_not_stand(record, vote)
        if reason:
            self._actions.report(f"this node does not stand for election: {reason}")
            if vote.is_over:
                self._ask_others_again(now_s)
            return None
        life = self._directory.life if record.lives else None
        epoch = self._directory.position.epoch
        change = taken_over(record, self._me, epoch, vote.answering(), life)
        if isinstance(change, Refusal):
            return None
        if self._outrun_s is not None:
            self._actions.report(
                f"this node stands for election with a shorter log than another one, which has not stood: "
                f"{positions(vote.told)}"
            )
        self._ask_others_again(now_s)
        self._stand(change)
        # In an earlier life this node led the recorded epoch: it wrote the frames of that epoch in its log itself.
        self._has_led = record.leader == self._me and epoch == record.epoch
        return change

    def _stand(self, change: Record) -> None:
        self._following.stop()
        self.is_standing = True
        self._stood.add(change.epoch)

    def _maybe_pre_vote(self, now_s: float, record: Record) -> PreVote | None:
        """Return the answers of the others, once they suffice for a decision; ask for them when that is due."""
        vote = self._pre_vote
        if vote is None or now_s >= vote.asked_s + ASKING_S:
            if now_s < self._ask_others_at_s():
                return None
            others = record.assigned - {self._me.node}
            self._pre_votes += 1
            vote = self._pre_vote = PreVote(self._pre_votes, others, now_s)
            if others:
                self._actions.add(AskPositions(vote.number, others))
        return vote if vote.is_ready(now_s, self._timers.ask_s) else None

    def _ask_others_again(self, now_s: float) -> None:
        self._pre_vote = None
        self._asks_at_s = now_s + self._timers.ask_again_s

    def _why_not_stand(self, record: Record, vote: PreVote) -> str:
        """Return why this node must not lead, by the answers of others; empty when it may."""
        position = self._directory.position
        ahead = vote.ahead(position)
        if ahead is not None:
            return (
                f"{ahead.replica.node} has as committed what is not here, up to {ahead.committed}, and the log of this "
                f"node ends at {position}: was its data directory restored from a copy?"
            )
        if not vote.reaches(record):
            known = positions(vote.told)
            return (
                f"a leader needs {record.least - 1} other node(s) to confirm anything, and {len(vote.reached)} answer"
                + (f" ({known})" if known else "")
            )
        return ""

    def _ask_others_at_s(self) -> float:
        """Return when to ask the others, so that their answers are there when this node can stand."""
        return max(self._due_s() - self._timers.ask_s, self._asks_at_s)

    def _stand_at_s(self) -> float:
        """Return when this node should stand if it hears nothing before: after the nodes whose logs go further."""
        due_s, vote, record = self._due_s(), self._pre_vote, self._view.record
        if record is None or vote is None or due_s == NEVER:
            return due_s
        rank = vote.rank(record, self._me, self._directory.position)
        if rank and due_s < self._following.heard_s:  # a previous leader waits as long as the others
            due_s = self._following.heard_s + self._timers.grace_s
        if self._outrun_s is not None:
            due_s = max(due_s, self._outrun_s + self._timers.yield_s)
        return due_s + rank * self._timers.stagger_s

    def _due_s(self) -> float:
        """Return when this node should stand as the first one; never for one outside the set."""
        if not self._view.is_read or self._view.is_swapping:
            return NEVER
        record = self._view.record
        if record is None:
            return -math.inf
        if not record.may_stand(self._me) or self._following.epoch > record.epoch:
            return NEVER
        if self._directory.trouble:
            return NEVER
        return -math.inf if record.leader == self._me else self._following.gone_at_s()
