"""Reports on policy files: how far an int8 file is from its float twin, layer by layer, as numbers and as a page."""

from __future__ import annotations

from quarl_export.reports.comparison import Comparison, compare_files
from quarl_export.reports.page import write_report

__all__ = ["Comparison", "compare_files", "write_report"]
