"""Pure decisions: conversations, estimates, which engines serve a turn."""
