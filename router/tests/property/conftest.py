"""For tests over generated examples."""

from hypothesis import settings

# Deadlines of single examples would measure how busy the machine is.
settings.register_profile("busy-machine", deadline=None)
settings.load_profile("busy-machine")
