# ruff: noqa: E501
"""Breaks the protocol of a cluster on purpose, one mutant at a time: each time its tests have to fail.

    make mutants-cluster                                    all of them
    make mutants-cluster ARGS="unknown-is-failure ..."      some of them

``source_mutants.py`` defines mutants and exit codes.
"""

from __future__ import annotations

import os
import sys
from typing import Final

from source_mutants import mutant, try_mutants

SEEDS: Final = os.environ.get("WARREN_TEST_CLUSTER_SEEDS", "250")
RECORD: Final = "cluster/record.py"
VIEW: Final = "cluster/record_view.py"
PEERS: Final = "cluster/peers.py"
MEMBER: Final = "cluster/member.py"
LEADERSHIP: Final = "cluster/leadership.py"
CANDIDACY: Final = "cluster/candidacy.py"
FOLLOWING: Final = "cluster/following.py"
DIRECTORY: Final = "cluster/own_directory.py"
HANDOVER: Final = "cluster/handover.py"
RENEWAL: Final = "cluster/renewal.py"
ASKED: Final = "cluster/asked_change.py"
TIMERS: Final = "cluster/timers.py"
DISKS: Final = "cluster/disk_watch.py"
ETCD: Final = "cluster/etcd.py"
WIRE: Final = "cluster/etcd_wire.py"
PRE_VOTE: Final = "cluster/pre_vote.py"
REPLICA: Final = "replication/replica_store.py"
# The tests that have to find a mutant.
FINDERS: Final = (
    "unit/cluster",
    "unit/replication/test_replica_store.py",
    "cluster/test_members.py",
    "cluster/test_protocol.py",
)

MUTANTS: Final = (
    mutant(
        "suspect-after-limit",
        "a silent follower stops all service before it leaves the set",
        (TIMERS, "if not self.beacon_s < self.suspect_s < self.limit_s:", "if not self.beacon_s < self.suspect_s:"),
    ),
    mutant(
        "limit-not-below-grace",
        "two nodes deliver the same messages",
        (TIMERS, "if self.limit_s * (1 + CLOCK_RATE_ERROR) >= self.grace_s * (1 - CLOCK_RATE_ERROR):", "if False:"),
        (TIMERS, "grace_s: float = 2.2", "grace_s: float = 1.9"),
    ),
    mutant(
        "limit-from-receipt",
        "a leader whose answers come late serves beside the next one",
        (PEERS, "peer.promised_s = max(peer.promised_s, sent_s)", "peer.promised_s = now_s"),
    ),
    mutant(
        "promise-of-one",
        "a leader that one follower still hears serves beside the one that the other has made",
        (PEERS, "return min((self.of(replica).promised_s", "return max((self.of(replica).promised_s"),
    ),
    mutant(
        "serves-after-a-pause",
        "a leader that slept delivers before it looks at the clock",
        (
            LEADERSHIP,
            "return self._is_told_to_serve and now_s < self._serves_until_s",
            "return self._is_told_to_serve",
        ),
    ),
    mutant(
        "join-before-caught-up",
        "a replica without confirmed messages leads",
        (LEADERSHIP, "self.peers.of(replica).synced_lsn < lsn or replica not in", "replica not in"),
    ),
    mutant(
        "join-required-late",
        "a replica joins without what was confirmed while it was being recorded",
        (
            LEADERSHIP,
            "        if self._joining is not None:\n            required |= {self._joining[0]}\n",
            "",
        ),
        (LEADERSHIP, "synced_lsn < lsn or replica not in self._required", "synced_lsn < lsn"),
        (LEADERSHIP, "for record in self._view.possible))", "for record in self._view.possible[:1]))"),
    ),
    mutant(
        "shrink-assumed",
        "a replica that is still recorded leads without what was confirmed meanwhile",
        (LEADERSHIP, "for record in self._view.possible))", "for record in self._view.possible[-1:]))"),
    ),
    mutant(
        "new-set-only-when-known",
        "a change that came into force unnoticed makes a replica lead that lacks confirmed messages",
        (LEADERSHIP, "for record in self._view.possible))", "for record in self._view.possible[:1]))"),
    ),
    mutant(
        "unknown-is-failure",
        "the same, after a request that etcd did not answer",
        (
            VIEW,
            "whatever is read.\"\"\"\n        self._answered(number)\n",
            "whatever is read.\"\"\"\n        self._answered(number)\n        self._open.clear()\n",
        ),
    ),
    mutant(
        "read-settles",
        "the same, after a request that etcd carries out later than a read",
        (VIEW, "        self.is_read = True\n", "        self.is_read = True\n        self._open.clear()\n"),
    ),
    mutant(
        "old-news-taken",
        "a late watch brings an old set back",
        (VIEW, "found.revision <= self.known.revision", "found.revision == self.known.revision"),
    ),
    mutant(
        "stand-outside-set",
        "a replica that was removed leads without what was confirmed since",
        (RECORD, "if candidate not in record.in_sync:", "if candidate.node not in record.assigned:"),
        (RECORD, "changed = _of_set(record, in_sync, {} if", "changed = _of_set(record, in_sync | {candidate}, {} if"),
        (CANDIDACY, "if not record.may_stand(self._me) or self", "if self"),
    ),
    mutant(
        "incarnation-ignored",
        "a node that comes back with an empty disk leads",
        (RECORD, "    in_sync = _without_leader(record, candidate)",
         "    in_sync = frozenset(r for r in record.in_sync if r.node != candidate.node) - {record.leader} | {candidate}"),
        (RECORD, "if candidate not in record.in_sync:", "if candidate.node not in {r.node for r in record.in_sync}:"),
        (RECORD, "    if answering is not None:\n", "    if False:\n"),
        (CANDIDACY, "if not record.may_stand(self._me) or self", "if self._me.node not in {r.node for r in record.in_sync} or self"),
    ),
    mutant(
        "min-in-sync-undercut",
        "one disk has the only copy of what was confirmed",
        (RECORD, "if len(record.in_sync) <= record.least:", "if len(record.in_sync) <= 1:"),
    ),
    mutant(
        "take-over-undercuts",
        "the same, after a take-over",
        (RECORD, "return rest if len(rest) >= record.least else record.in_sync", "return rest"),
    ),
    mutant(
        "epoch-unchecked",
        "a leader that was deposed goes on to confirm",
        (MEMBER, "elif beacon.epoch < floor:", "elif beacon.epoch < 1:"),
        (MEMBER, "elif (rival := self._following.rival(beacon)) is not None:", "elif (rival := self._following.rival(beacon)) is not None and False:"),
    ),
    mutant(
        "acks-while-leading",
        "a new leader acknowledges frames of the old one into its own log",
        (
            MEMBER,
            "        self._following.stop()\n        self.leadership = Leadership(\n",
            "        self.leadership = Leadership(\n",
        ),
        (
            CANDIDACY,
            "        self._following.stop()\n        self.is_standing = True\n",
            "        self.is_standing = True\n",
        ),
    ),
    mutant(
        "leads-epoch-of-earlier-life",
        "an epoch has two logs",
        (
            CANDIDACY,
            "return is_new and (record.epoch in self._stood or record.by is LeaderBy.TRANSFER)",
            "return True",
        ),
        (CANDIDACY, "if record.leader != self._me or record.epoch <= self._directory.position.epoch:", "if record.leader != self._me:"),
    ),
    mutant(
        "epoch-taken-again",
        "an epoch has two leaders",
        (RECORD, "epoch = max(record.epoch, log_epoch) + 1\n    changed",
         "epoch = max(record.epoch, log_epoch) + (record.leader != candidate)\n    changed"),
        (CANDIDACY, "is_new = self._view.first_epoch is not None and record.epoch > self._view.first_epoch", "is_new = True"),
        (CANDIDACY, "if record.leader != self._me or record.epoch <= self._directory.position.epoch:", "if record.leader != self._me:"),
    ),
    mutant(
        "serves-while-handing-over",
        "two nodes deliver the same messages during a transfer",
        (LEADERSHIP, "may = self.has_recovered and self.handover.drained_lsn is None and", "may = self.has_recovered and"),
    ),
    mutant(
        "hands-over-before-it-is-drained",
        "what clients were told while they were sent away is gone with the next leader",
        (HANDOVER, "        if self.drained_lsn is None:\n            return None\n", "        if self.target is None:\n            return None\n"),
        (HANDOVER, ".synced_lsn < self.drained_lsn:", ".synced_lsn < (self.drained_lsn or 0):"),
    ),
    mutant(
        "target-lacks-the-end",
        "a planned transfer loses what was written last",
        (HANDOVER, "if target is None or self._peers.of(target).synced_lsn < self.drained_lsn:", "if target is None:"),
    ),
    mutant(
        "hands-over-to-the-dead",
        "nobody leads for the grace time, though another node could",
        (HANDOVER, "if target not in record.in_sync or not self._peers.is_useful(target, now_s):", "if target not in record.in_sync:"),
        (HANDOVER, "            if not self._peers.is_useful(target, now_s):\n                return Refusal(f\"{node} does not answer",
         "            if False:\n                return Refusal(f\"{node} does not answer"),
    ),
    mutant(
        "hands-over-for-ever",
        "a leader that nobody takes over from serves nobody",
        (HANDOVER, "self.until_s = now_s + self._timers.hand_over_s", "self.until_s = NEVER"),
    ),
    mutant(
        "forgets-the-living",
        "a node that runs is sent away, and takes its copy with it",
        (ASKED, "request.ask is Ask.FORGET and self._is_there(", "False and self._is_there("),
    ),
    mutant(
        "forgotten-undercuts",
        "one disk has the only copy of what was confirmed, after a node was forgotten",
        (RECORD, "    if len(in_sync) < changed.least:", "    if len(in_sync) < 1:"),
    ),
    mutant(
        "more-required-than-there-are",
        "a record that says that fewer are in sync than have to be",
        (RECORD, "    if len(record.in_sync) < least:", "    if False:"),
    ),
    mutant(
        "required-does-not-grow",
        "a store that began with one node has one copy of what is confirmed, however many have joined",
        (RECORD, "wanted = min_in_sync or len(record.assigned) // 2 + 1", "wanted = min_in_sync or record.min_in_sync"),
    ),
    mutant(
        "joined-nodes-not-counted",
        "the same, since nobody has the record require more after a node has joined",
        (LEADERSHIP, "            or self._with_required(record)\n", ""),
    ),
    mutant(
        "recovery-within-known-epochs",
        "a recovered node begins an epoch that another one has begun",
        (CANDIDACY, "epoch = self._view.record, self.known_epoch() + beyond", "epoch = self._view.record, 0 if self._view.record is None else self._view.record.epoch"),
    ),
    mutant(
        "recovery-beside-a-leader",
        "two nodes lead, one of them by the word of an administrator",
        (FOLLOWING, "self._followed is None or now_s >= self.heard_s + self._timers.grace_s:", "True:"),
    ),
    mutant(
        "drained-stands",
        "a node that is to be worked on leads again",
        (CANDIDACY, "if not record.may_stand(self._me) or self", "if self._me not in record.in_sync or self"),
    ),
    mutant(
        "waits-for-who-handed-over",
        "the next leader confirms nothing until the last one is back",
        (RECORD, "    in_sync = _without_leader(record, target)\n", "    in_sync = record.in_sync\n"),
    ),
    mutant(
        "begins-at-once",
        "a change that comes into force late makes two nodes serve",
        (CANDIDACY, "return now_s if is_alone else", "return now_s if True else"),
    ),
    mutant(
        "promise-forgotten-by-a-start",
        "a follower that restarts serves beside the leader it had answered",
        (FOLLOWING, "        self.heard_s = now_s\n        self.is_acknowledging", "        self.heard_s = -1e9\n        self.is_acknowledging"),
        (FOLLOWING, "        self._answered_s = now_s\n        self._lost_s:", "        self._answered_s = -1e9\n        self._lost_s:"),
        (FOLLOWING, "            self._is_there(now_s)\n            self.stop()", "            self.stop()"),
    ),
    mutant(
        "beacon-despite-hung-disk",
        "a leader whose disk hangs is never replaced",
        (LEADERSHIP, "if now_s >= self.peers.beacon_at_s and not self._directory.is_stuck(now_s):", "if now_s >= self.peers.beacon_at_s:"),
    ),
    mutant(
        "stuck-replica-kept",
        "one replica whose disk hangs stalls all confirms",
        (PEERS, "peer.progress_s if is_behind else math.inf", "math.inf"),
    ),
    mutant(
        "epoch-of-old-etcd",
        "after etcd was restored from a backup an epoch is led twice",
        (RECORD, "    epoch = max(record.epoch, log_epoch) + 1\n    changed", "    epoch = record.epoch + 1\n    changed"),
    ),
    mutant(
        "unsettled-forever",
        "a replica that was to join and is gone stalls all confirms",
        (LEADERSHIP, "if change is None and self._view.unsettled:", "if False:"),
    ),
    mutant(
        "committed-is-cut",
        "a leader with a restored disk has the others cut off what was confirmed",
        (REPLICA, "if lsn >= kept or (self._may_lose and lsn >= self._checkpoint.lsn):", "if True:"),
    ),
    mutant(
        "committed-is-forgotten",
        "the same, once the others have restarted",
        (REPLICA, "        self.committed_lsn = committed_lsn\n", "        self.committed_lsn = 0\n"),
    ),
    mutant(
        "any-epoch-may-cut",
        "the same, by the next epoch, without the word of a person",
        (REPLICA, "epoch - self.epoch >= EPOCH_STRIDE", "epoch > self.epoch"),
    ),
    mutant(
        "objection-unheard",
        "a leader that lacks what was confirmed stays, and nobody else leads",
        (
            MEMBER,
            "self._end(f\"{replica} has committed data",
            "self._actions.report(f\"{replica} has committed data",
        ),
    ),
    mutant(
        "stands-alone",
        "a node that reaches only etcd wins again and again, and nobody is served",
        (PRE_VOTE, "return len(self.reached) >= record.least - 1", "return True"),
    ),
    mutant(
        "stands-behind",
        "a node leads that lacks what another one has as committed",
        (PRE_VOTE, "if told.committed > position]", "if told.committed > (1 << 60, 0)]"),
    ),
    mutant(
        "rank-ignored",
        "the node with the shortest log may lead first",
        (CANDIDACY, "return due_s + rank * self._timers.stagger_s", "return due_s"),
    ),
    mutant(
        "gives-way-to-nobody",
        "a node leads whose disk has lost what was confirmed last, if it was started before the others",
        (PRE_VOTE, "told.position > position for other", "told.position > Position(1 << 60, 0) for other"),
    ),
    mutant(
        "set-of-the-dead",
        "after a take-over commits wait for a node that is cut off, and the one that answers is out",
        (RECORD, "key=lambda other: (other not in there, other == record.leader, other)", "key=lambda other: other == record.leader"),
    ),
    mutant(
        "lives-not-compared",
        "a disk that was restored to an earlier life leads",
        (DIRECTORY, "elif life not in self._lives or (is_start", "elif (is_start"),
        (DIRECTORY, "self._keep(self._lives[self._lives.index(life) :])", "pass"),
    ),
    mutant(
        "floor-not-compared",
        "a disk that was restored within a life leads",
        (DIRECTORY, " or (is_start and self._began_at < record.floor):", ":"),
    ),
    mutant(
        "floor-compared-later",
        "a node that has everything leaves the set, since the log went on",
        (DIRECTORY, "(is_start and self._began_at < record.floor)", "self._began_at < record.floor"),
    ),
    mutant(
        "restored-stands",
        "a node that knows its disk to be a restored one leads",
        (CANDIDACY, "        if self._directory.trouble:\n            return NEVER\n", ""),
        (CANDIDACY, "        if self._directory.trouble and record is not None:", "        if False:"),
    ),
    mutant(
        "restored-is-handed-over-to",
        "a restored disk leads by a transfer that was under way",
        (CANDIDACY, "        if self._directory.trouble:\n            return False  #", "        if False:\n            return False  #"),
    ),
    mutant(
        "restored-keeps-its-lives",
        "a restored disk that was caught up half, and restarted, leads",
        (DIRECTORY, "            self._keep(self._lives[-1:])\n            self._actions.report(", "            self._actions.report("),
    ),
    mutant(
        "recorded-life-forgotten",
        "a directory that has everything is taken for a restored one after a crash",
        (DIRECTORY, "self._keep(self._lives[self._lives.index(life) :])", "self._keep(self._lives[-1:])"),
    ),
    mutant(
        "lives-for-all",
        "a node of an older version cannot read the record while others are upgraded",
        (RENEWAL, "(bool(record.lives) or record.assigned <= known)", "True"),
    ),
    mutant(
        "renewed-at-every-turn",
        "etcd gets a revision for every commit",
        (RENEWAL, "(self._epoch, self._committed_lsn) if now_s >= self._renews_at_s else", "(self._epoch, self._committed_lsn) if True else"),
    ),
    mutant(
        "floor-sinks",
        "a late renewal makes a restored disk look like a good one",
        (RECORD, "floor=max(record.floor, floor)", "floor=floor"),
    ),
    mutant(
        "slow-link-kept",
        "one follower behind a slow link makes every confirm slow",
        (LEADERSHIP, "            or self._without_slow(now_s, record)\n", ""),
    ),
    mutant(
        "slow-link-comes-back",
        "the same, again and again",
        (LEADERSHIP, "if self.peers.is_slow(replica) and self._has_enough_quick(now_s, record):", "if False:"),
    ),
    mutant(
        "removes-whom-it-needs",
        "nodes that are cut off together cannot elect a leader at once",
        (LEADERSHIP, "if len(record.in_sync) - len(silent) < record.least:", "if False:"),
    ),
    mutant(
        "write-sent-again",
        "a change that was refused the second time had been made the first time",
        (ETCD, 'return await self._write("kv/txn", body, TxnAnswer)', 'return await self._read("kv/txn", body, TxnAnswer)'),
        (ETCD, "if answer.succeeded or len(sent) == 1:", "if True:"),
    ),
    mutant(
        "refused-by-one-of-two",
        "the same, when a change was sent to two endpoints and one of them has not answered",
        (ETCD, "if answer.succeeded or len(sent) == 1:", "if True:"),
    ),
    mutant(
        "all-are-slow",
        "a leader gives way though no disk is better, and the next one does",
        (DISKS, "if is_late and other not in late", "if is_late"),
    ),
    mutant(
        "gives-way-again",
        "two nodes whose disks are slow in turn do nothing but hand over",
        (DISKS, "or (now_s < self._is_slow_at_s and self._me.node not in self.short):", "or False:"),
    ),
    mutant(
        "deposed-unnoticed",
        "a leader whose watch hangs, and that nobody answers, holds its clients until it is ended",
        (LEADERSHIP, "return NEVER if is_asking else max(", "return NEVER if True else max("),
    ),
    mutant(
        "error-is-failure",
        "a change that etcd makes after its time-out is taken for none",
        (ETCD, "raise OutcomeUnknown(str(refused)) from refused", "raise EtcdError(str(refused)) from refused"),
    ),
    mutant(
        "old-data-believed",
        "an etcd that was restored makes a replica lead that left the set long ago",
        (ETCD, "if header.raft_term < term or header.revision < revision:", "if False:"),
    ),
    mutant(
        "another-cluster-believed",
        "an endpoint that belongs to somebody else names a leader",
        (ETCD, "elif self._cluster_id != header.cluster_id:", "elif False:"),
    ),
    mutant(
        "compared-with-later-answers",
        "two requests at a time make etcd look old, and nothing can change",
        (ETCD, "self._guard(connection.endpoint, answer.header, term, revision)",
         "self._guard(connection.endpoint, answer.header, self._raft_term, self._revision)"),
    ),
    mutant(
        "answers-unbounded",
        "something else at the port of etcd fills the memory",
        (WIRE, "if len(body) > ANSWER_BYTES_MAX:", "if False:"),
    ),
)  # fmt: skip


if __name__ == "__main__":
    lengths = {"WARREN_TEST_CLUSTER_SEEDS": SEEDS, "WARREN_TEST_INTERPRETED": "1"}
    sys.exit(try_mutants(sys.argv[1:], MUTANTS, lambda broken: FINDERS, lengths))
