"""How much of the cache may be kept for later turns.

Pure. Kept blocks cannot be evicted, so without a cap conversations that never come back would leave no room to serve.
"""


def may_keep(blocks: int, *, kept_blocks: int, total_blocks: int, max_percent: int) -> bool:
    """Whether so many more blocks may be kept beside those that are."""
    return kept_blocks + blocks <= total_blocks * max_percent // 100
