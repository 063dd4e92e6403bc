"""Layer 0: what a PDDeployment is, as types, names and words. Pure; imports nothing of this package above it."""
