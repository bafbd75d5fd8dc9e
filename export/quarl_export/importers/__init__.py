"""From any source to `quarl_export.ir.ImportedPolicy`: float weights, a graph, a contract."""
