"""Plugins of this member's tests: pytest takes them from the top-level conftest only."""

pytest_plugins = ["pdd_e2e.control_plane.fixtures", "pytester"]
