"""The `pdd` command."""
