"""The decisions of claiming, free of vLLM, sockets and clocks: what to ask, what to grant, what to let go, when to give up."""
