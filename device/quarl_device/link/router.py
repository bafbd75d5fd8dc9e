"""From an incoming topic to its handlers, and the guard around them (W5)."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from paho.mqtt.client import topic_matches_sub

from quarl_device.errors import UsageError
from quarl_device.link.protocol import Handler, LinkCounters, Message

_log = logging.getLogger(__name__)
_CACHED_TOPICS = 4096
_LOG_EVERY_S = 5.0
_MAX_TOPIC_BYTES = 65_535


def check_topic(topic: str) -> None:
    """Refuse a topic that nothing may be published to.

    Raises:
        UsageError: it is empty, too long, or holds a wildcard.
    """
    if not 0 < len(topic.encode(errors="replace")) <= _MAX_TOPIC_BYTES or "+" in topic or "#" in topic:
        raise UsageError(f"bad topic {topic[:80]!r}: expected 1-{_MAX_TOPIC_BYTES} bytes without '+' and '#'")


def check_filter(topic_filter: str) -> None:
    """Refuse a filter that no broker takes: with it every later connection would fail.

    Raises:
        UsageError: it is empty, too long, or '+' is not a whole level, or '#' not the last one.
    """
    levels = topic_filter.split("/")
    holds = 0 < len(topic_filter.encode(errors="replace")) <= _MAX_TOPIC_BYTES
    holds &= "#" not in "/".join(levels[:-1]) and levels[-1] in ("#", levels[-1].replace("#", ""))
    if not holds or any("+" in level and level != "+" for level in levels):
        raise UsageError(f"bad topic filter {topic_filter[:80]!r}: '+' must be a whole level, '#' the whole last one")


class Router:
    """Topic filters and their handlers.

    Args:
        counters: of the link; the guard counts and notes exceptions there.
    """

    def __init__(self, counters: LinkCounters) -> None:
        self._counters = counters
        self._handlers: dict[str, tuple[Handler, int]] = {}
        self._cache: dict[str, tuple[Handler, ...]] = {}
        self._quiet_until = 0.0

    def add(self, topic_filter: str, handler: Handler, qos: int) -> None:
        """Route `topic_filter` to `handler` from now on, instead of an earlier handler of the same filter.

        Raises:
            UsageError: not a filter.
        """
        check_filter(topic_filter)
        # A new dict, never a change in place: the link's thread may be iterating.
        self._handlers = {**self._handlers, topic_filter: (handler, qos)}
        self._cache = {}

    def remove(self, topic_filter: str) -> bool:
        """Route `topic_filter` nowhere from now on; say whether it was routed."""
        known = topic_filter in self._handlers
        self._handlers = {name: entry for name, entry in self._handlers.items() if name != topic_filter}
        self._cache = {}
        return known

    def filters(self) -> list[tuple[str, int]]:
        """Return each filter with its QoS, oldest first."""
        return [(topic_filter, qos) for topic_filter, (_, qos) in self._handlers.items()]

    def dispatch(self, message: Message) -> None:
        """Call every handler whose filter matches."""
        cache = self._cache
        handlers = cache.get(message.topic)
        if handlers is None:
            table = self._handlers
            handlers = tuple(h for sub, (h, _) in table.items() if topic_matches_sub(sub, message.topic))
            if len(cache) < _CACHED_TOPICS:
                cache[message.topic] = handlers
        for handler in handlers:
            try:
                handler(message)
            except (Exception, SystemExit) as error:
                self._note(f"the handler of {message.topic}", error)

    def guard(self, what: str, callback: Callable[[], None]) -> None:
        """Call `callback`; an exception is counted and logged and goes no further."""
        try:
            callback()
        except (Exception, SystemExit) as error:
            self._note(what, error)

    def _note(self, what: str, error: BaseException) -> None:
        self._counters.handler_errors += 1
        self._counters.last_error = f"{what} raised {type(error).__name__}: {error}"[:300]
        # A hostile sender must not be able to fill the disk with tracebacks.
        if time.monotonic() >= self._quiet_until:
            self._quiet_until = time.monotonic() + _LOG_EVERY_S
            _log.error("%s raised (%d so far)", what, self._counters.handler_errors, exc_info=error)
