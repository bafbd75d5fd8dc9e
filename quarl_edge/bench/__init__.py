"""What the published figures are measured with: a module for each `quarl-edge bench` command."""
