"""`pdd status`: how a PDDeployment stands, why, and what to do. ``report``, ``remedies`` and ``table`` are pure."""
