"""For every test of the operator: a real control plane, started when a test first asks for it, one for the whole run."""

pytest_plugins = ["pdd_e2e.control_plane.fixtures"]
