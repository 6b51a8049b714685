"""Upstreams and upstream sets: their parameters, their place in policies, and the result of a policy.

    policy key                    upstreams
    federation-upstream           the one of that name
    federation-upstream-set       those of the set; ``all`` means every upstream of the vhost
    federation-upstream-pattern   those whose name matches, unanchored

1. A member of a set may override settings of its upstream. Upstreams that do not exist are skipped: they may be set
   later.
2. A URI without a vhost means the vhost with the name of the downstream's vhost.

Source: RabbitMQ's federation, keys and sentences of 3.10; ``queue-type`` of later versions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from warren.amqp.numbers import count_of, milliseconds_of, seconds_of
from warren.amqp_client.client_errors import BrokerError
from warren.links import transfer, validation
from warren.links.amqp_uri import BrokerUri, parse_uri
from warren.links.endpoints import parse_uris, prefetch
from warren.links.host import Parameter, Policy
from warren.links.validation import Json, optional, required, term

UPSTREAM: Final = "federation-upstream"
UPSTREAM_SET: Final = "federation-upstream-set"
UPSTREAM_PATTERN: Final = "federation-upstream-pattern"
ALL: Final = "all"
RECONNECT_DELAY_S: Final = 5.0
MEMBERS_MAX: Final = 2000  # of a set: as many as a vhost has links. All are looked at without a pause
HOPS_MAX: Final = 0x7FFF  # a federation link writes it into the arguments of bindings, as a signed number of 16 bits
_SETTINGS: Final = (
    optional("exchange", validation.short_text),
    optional("queue", validation.short_text),
    optional("consumer-tag", validation.short_text),
    optional("prefetch-count", validation.number),
    optional("reconnect-delay", validation.number),
    optional("max-hops", validation.number),
    optional("expires", validation.number),
    optional("message-ttl", validation.number),
    optional("trust-user-id", validation.boolean),
    optional("ack-mode", validation.choice(transfer.NO_ACK, transfer.ON_PUBLISH, transfer.ON_CONFIRM)),
    optional("resource-cleanup-mode", validation.choice("default", "never")),
    optional("queue-type", validation.choice("classic", "quorum")),
    optional("ha-policy", validation.binary),
    optional("bind-nowait", validation.boolean),
    optional("channel-use-mode", validation.choice("multiple", "single")),
)


def validate_upstream(
    name: str, value: Json, *, user: str = "", may_connect: Callable[[str], bool] | None = None, vhost: str = "/"
) -> list[str]:
    """Return the error in a federation-upstream parameter; empty when it may be stored.

    `may_connect`: whether `user`, who sets it, may use a vhost of this broker; None: do not check.
    """

    def may_use(uri: str) -> str | None:
        parsed = parse_uri(uri, vhost)
        if not parsed.is_local or may_connect is None or may_connect(parsed.vhost):
            return None
        return f'user "{user}" may not connect to vhost "{parsed.vhost}"'

    return validation.fields(name, value, (required("uri", validation.uris(may_use)), *_SETTINGS))


def validate_upstream_set(name: str, value: Json) -> list[str]:
    """Return the error in a federation-upstream-set parameter."""
    if value == {}:
        return []
    if not isinstance(value, list):
        return [f"{name} should be list, actually was {term(value)}"]
    if len(value) > MEMBERS_MAX:
        return [f"{name} has {len(value)} upstreams (maximum {MEMBERS_MAX})"]
    known = (required("upstream", validation.binary), *_SETTINGS)
    return [problem for member in value for problem in validation.fields(name, member, known)]


@dataclass(frozen=True)
class Upstream:
    """One upstream of a policy: the settings of its parameter, with those of the set member over them."""

    name: str
    uris: tuple[BrokerUri, ...]
    exchange: str | None
    queue: str | None
    consumer_tag: str
    prefetch_count: int
    reconnect_delay_s: float
    max_hops: int
    expires_ms: int | None
    message_ttl_ms: int | None
    trust_user_id: bool
    ack_mode: str
    cleans_up: bool
    queue_type: str | None
    bind_nowait: bool


def _maybe_pattern(text: str) -> Any:
    """Compile the pattern of a policy; None if it is not valid, which no policy allows."""
    import re2  # takes 3 MB: brokers without such a policy save them

    options = re2.Options()
    options.log_errors = False
    options.never_capture = True  # otherwise RE2 searches each match a second time, for its groups
    try:
        return re2.compile(text, options)
    except re2.error:
        return None


def _upstream(name: str, vhost: str, settings: Mapping[str, Any]) -> Upstream:
    return Upstream(
        name=name,
        uris=parse_uris(settings["uri"], vhost),
        exchange=settings.get("exchange"),
        queue=settings.get("queue"),
        consumer_tag=settings.get("consumer-tag", f"federation-link-{name}"),
        prefetch_count=prefetch(settings.get("prefetch-count")),
        reconnect_delay_s=seconds_of(settings.get("reconnect-delay"), RECONNECT_DELAY_S),
        max_hops=count_of(settings.get("max-hops"), 1, low=1, high=HOPS_MAX),
        expires_ms=milliseconds_of(settings.get("expires")),
        message_ttl_ms=milliseconds_of(settings.get("message-ttl")),
        trust_user_id=settings.get("trust-user-id", False),
        ack_mode=settings.get("ack-mode", transfer.ON_CONFIRM),
        cleans_up=settings.get("resource-cleanup-mode", "default") == "default",
        queue_type=settings.get("queue-type"),
        bind_nowait=settings.get("bind-nowait", False),
    )


def maybe_upstream(name: str, vhost: str, settings: Mapping[str, Any]) -> Upstream | None:
    """Return an upstream with these settings; None: it has no URI to connect to."""
    try:
        return _upstream(name, vhost, settings)
    except BrokerError:
        return None


class UpstreamBook:
    """The upstreams and sets of all vhosts, as the parameters have them at one moment."""

    def __init__(self, parameters: Iterable[Parameter] = ()) -> None:
        # The errors in parameters that an earlier version accepted. These parameters count as missing.
        self.problems: list[tuple[Parameter, str]] = []
        self._upstreams: dict[str, dict[str, Mapping[str, Any]]] = {}
        self._sets: dict[str, dict[str, list[Mapping[str, Any]]]] = {}
        for parameter in parameters:
            self.add(parameter)

    def add(self, parameter: Parameter) -> None:
        """Add an upstream or a set; ignore any other parameter."""
        value = parameter.value
        if parameter.component == UPSTREAM:
            wrong = validate_upstream(parameter.name, value)
            if not wrong:
                assert isinstance(value, dict)
                self._upstreams.setdefault(parameter.vhost, {})[parameter.name] = value
        elif parameter.component == UPSTREAM_SET:
            wrong = validate_upstream_set(parameter.name, value)
            if not wrong:
                members = value if isinstance(value, list) else []
                self._sets.setdefault(parameter.vhost, {})[parameter.name] = members
        else:
            return
        if wrong:
            self.problems.append((parameter, "; ".join(wrong)))

    def resolve(self, vhost: str, policy: Policy) -> list[Upstream]:
        """Return the upstreams that `policy` names in `vhost`, in the order of their names; each once."""
        made = (maybe_upstream(name, vhost, settings) for name, settings in self.chosen(vhost, policy))
        return [each for each in made if each is not None]

    def chosen(self, vhost: str, policy: Policy) -> list[tuple[str, Mapping[str, Any]]]:
        """Return the names and settings of these upstreams, in the order of their names; each once."""
        known = self._upstreams.get(vhost, {})
        chosen = {name: settings for name, settings in self._members(vhost, known, policy) if settings is not None}
        return sorted(chosen.items(), key=lambda each: each[0])

    def _members(
        self, vhost: str, known: Mapping[str, Mapping[str, Any]], policy: Policy
    ) -> Sequence[tuple[str, Mapping[str, Any] | None]]:
        if policy.upstream is not None:
            return [(policy.upstream, known.get(policy.upstream))]
        if policy.upstream_pattern is not None:
            pattern = _maybe_pattern(policy.upstream_pattern)
            return [
                (name, settings) for name, settings in known.items() if pattern is not None and pattern.search(name)
            ]
        if policy.upstream_set == ALL:
            return list(known.items())
        members: list[tuple[str, Mapping[str, Any] | None]] = []
        for member in self._sets.get(vhost, {}).get(policy.upstream_set or "", []):
            name = member["upstream"]
            settings = known.get(name)
            members.append((name, None if settings is None else {**settings, **member}))
        return members
