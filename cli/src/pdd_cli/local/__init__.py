"""Engines and routers of this machine, started, watched and stopped: what the demo, the end-to-end tests and the benches stand on.

    from pdd_cli.local.stack import LocalStack, StackSpec

    async with LocalStack(StackSpec(python=..., model=..., run_folder=...)) as stack:
        stack.prefills[0].url, stack.routers["on"].url

Nothing here talks to a terminal (`progress.Progress` does) or knows a conversation. Linux only, as the engines are: it uses /proc and pidfd.
"""
