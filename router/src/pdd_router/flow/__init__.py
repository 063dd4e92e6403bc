"""One turn: what each leg is sent, what comes back, what happens when a leg fails."""
