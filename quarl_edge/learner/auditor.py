"""Compares pushed files with real conversions: the first before anybody acts with it, later ones in a child.

A difference means that a template does not say what the network says. After one in the first, before an actor has seen
any, every policy is converted; a later one is logged as an error and counted in the run's result, and training goes on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from quarl_edge.learner.publisher import Pushed
from quarl_export.audit import AuditChild, AuditResult, audit
from quarl_export.qat_template import QatTemplate
from quarl_export.snapshot import PolicySnapshot

_LOG = logging.getLogger(__name__)


class Auditor:
    """Counts audits.

    Args:
        make_child: starts the low-priority converting child; called at the first submission.

    Attributes:
        audited: pushes compared so far.
        failures: of these, how many differed.
    """

    def __init__(self, make_child: Callable[[], AuditChild]) -> None:
        self._make_child = make_child
        self._child: AuditChild | None = None
        self.audited = 0
        self.failures = 0

    def submit(self, pushed: Pushed) -> bool:
        """Have `pushed` compared in the background; false while the child is busy with earlier ones."""
        if self._child is None:
            self._child = self._make_child()
        return self._child.submit(pushed.version, pushed.snapshot, pushed.policy)

    def poll(self) -> None:
        """Take finished comparisons."""
        if self._child is not None:
            for result in self._child.poll():
                self.record(result)

    def settle(self, template: QatTemplate, snapshot: PolicySnapshot) -> QatTemplate:
        """Compare the first push, of `snapshot`, and return the template that the run goes on with.

        One that can only convert is returned as it is; one whose push differs is made to convert.
        """
        if not template.reason:
            result = audit(template.spec, snapshot, template.patch(snapshot))
            self.record(result)
            if not result.failed and not result.identical:
                template = template.converting(f"the first push differs from its conversion: {result.detail}")
        if template.reason:
            _LOG.warning("every policy is converted, which takes a second or more: %s", template.reason)
        return template

    def record(self, result: AuditResult) -> None:
        """Count one comparison."""
        if result.failed:
            _LOG.warning("audit of policy version %d came to no verdict: %s", result.version, result.detail)
            return
        self.audited += 1
        if not result.identical:
            self.failures += 1
            _LOG.error("audit: policy version %d differs from its conversion: %s", result.version, result.detail)

    def close(self) -> None:
        """End the child."""
        if self._child is not None:
            self._child.close()
