"""Another process under this device's name: on one broker the two throw each other off for ever.

A device reads its own state topic, where it hears itself (its boot id) and, if there is one, the other. What an earlier
life left behind, its retained birth or its late will, is heard once and never after this life's own birth again.
So only what comes *in turn* with this life's own births counts: own, other, own, other, own, other.

The older of the two ends first, the one that heard itself before it heard the other: somebody has just started the
newcomer. The newcomer says so once, and ends only when the older one does not.
"""

from __future__ import annotations

import logging
from collections import OrderedDict, deque

from quarl_device.errors import IdInUse

_LOG = logging.getLogger(__name__)
_WINDOW_S = 60.0
_TURNS_OF_A_WARNING = 2
_TURNS_OF_THE_OLDER = 3
_TURNS_OF_THE_NEWCOMER = 6
_REMEMBERED = 16  # boot ids; a hostile sender must not be able to fill the memory


class Namesakes:
    """Hears every state under one name; no clock of its own.

    Args:
        name: the device's.
        boot_id: of this life.
    """

    def __init__(self, name: str, boot_id: str) -> None:
        self._name = name
        self._boot_id = boot_id
        self._heard_self = False
        self._warned = False
        self._own_turn = False  # this life's birth was the last that was heard
        self._earlier: set[str] = set()  # boot ids heard before this life's own
        self._turns: OrderedDict[str, deque[float]] = OrderedDict()

    def heard(self, boot_id: str, now_s: float) -> IdInUse | None:
        """A state with this boot id came; returns the error that ends this process, if there must be an end.

        Args:
            boot_id: of the life that said or left it.
            now_s: monotonic time.
        """
        if boot_id == self._boot_id:
            self._heard_self = self._own_turn = True
            return None
        if not self._heard_self and len(self._earlier) < _REMEMBERED:
            self._earlier.add(boot_id)
        turns = self._turns_of(boot_id)
        if self._own_turn:
            self._own_turn = False
            turns.append(now_s)
        while turns and now_s - turns[0] > _WINDOW_S:
            turns.popleft()
        limit = _TURNS_OF_THE_NEWCOMER if boot_id in self._earlier else _TURNS_OF_THE_OLDER
        if len(turns) >= limit:
            return self._error(boot_id)
        if len(turns) >= _TURNS_OF_A_WARNING and not self._warned:
            self._warned = True
            _LOG.warning("%s", self._error(boot_id))
        return None

    def _turns_of(self, boot_id: str) -> deque[float]:
        turns = self._turns.setdefault(boot_id, deque(maxlen=_TURNS_OF_THE_NEWCOMER))
        self._turns.move_to_end(boot_id)
        if len(self._turns) > _REMEMBERED:
            self._turns.popitem(last=False)
        return turns

    def _error(self, boot_id: str) -> IdInUse:
        return IdInUse(
            f"another process uses the id {self._name!r} on this broker (boot id {boot_id}, this one is "
            f"{self._boot_id}): each throws the other off",
            hint="give one of them another --id, or credentials of its own: quarl-edge enroll NAME",
        )
