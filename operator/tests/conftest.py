"""For every test of the operator: a real control plane, started when a test first asks for it, one for the whole run."""

from hypothesis import settings

pytest_plugins = ["pdd_e2e.control_plane.fixtures"]

# Deadlines of single examples would measure how busy the machine is.
settings.register_profile("busy-machine", deadline=None)
settings.load_profile("busy-machine")
