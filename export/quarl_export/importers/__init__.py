"""From any source to `quarl_export.ir.ImportedPolicy`: float weights, a graph, a contract."""

from quarl_export.importers.detect import detect, import_policy
from quarl_export.importers.options import ImportOptions

__all__ = ["ImportOptions", "detect", "import_policy"]
