"""Layer 1: from a PDDeployment to the objects it consists of. Pure: the same input gives the same bytes."""
