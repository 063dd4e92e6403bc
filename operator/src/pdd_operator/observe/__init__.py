"""Layer 1: from what is there to what is said of it and what comes next. Pure: no clock, no I/O."""
