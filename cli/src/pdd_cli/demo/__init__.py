"""`pdd demo`: a conversation of an agent, once without and once with reuse, and what that does to the time to the first token."""
