"""The fake's KV cache: a pool of blocks with reference counts, chained hashes and LRU eviction.

The rules are vLLM's: only full blocks are cached; the salt is part of the first block's hash only (and so of every
later one through the chain); a hash is visible as soon as its block is *scheduled*, `computed` says whether its content
is there; a block that nobody references keeps its hash until it is taken for something else, least recently used first.
Pure state, no clock and no I/O; the scheduler and the claim owner act on it from one event loop.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256

from pdd_e2e.fake_engine.model import block_digest


@dataclass(slots=True, eq=False)
class Block:
    """One block. `kv` holds 8 bytes a token that was computed into it; `hash` is set while it is in the prefix cache."""

    id: int
    references: int = 0
    hash: bytes | None = None
    computed: bool = False
    kv: bytearray = field(default_factory=bytearray)
    _digest: bytes | None = None

    def write(self, kv: bytes) -> None:
        """Append the KV of one token."""
        self.kv += kv
        self._digest = None

    def overwrite(self, kv: bytes) -> None:
        """Replace the whole content: a transfer, or (in tests) corruption."""
        self.kv = bytearray(kv)
        self._digest = None

    @property
    def digest(self) -> bytes:
        """Digest of the present content."""
        if self._digest is None:
            self._digest = block_digest(bytes(self.kv))
        return self._digest


def chained_hash(parent: bytes | None, tokens: Sequence[int], salt: str | None) -> bytes:
    """Hash (32 bytes) of one full block; `parent` is None for the first, the only one that the salt enters itself."""
    extra = b"" if salt is None or parent is not None else b"salt:" + salt.encode()
    body = b",".join(str(token).encode() for token in tokens)
    return sha256(b"|".join((parent or b"", body, extra))).digest()


class BlockPool:
    """All blocks of one engine.

    `size` is the number of blocks; with `caching` off nothing is ever found or granted. Raises `NoRoomError` when more
    blocks are asked for than are free.
    """

    def __init__(self, size: int, *, caching: bool = True) -> None:
        self.size = size
        self.caching = caching
        self.blocks = [Block(index) for index in range(size)]
        self._free: OrderedDict[int, Block] = OrderedDict((block.id, block) for block in self.blocks)
        self._cached: dict[bytes, dict[int, Block]] = {}

    @property
    def free(self) -> int:
        """Number of blocks that nobody references (cached ones among them)."""
        return len(self._free)

    @property
    def held(self) -> int:
        """Number of blocks that somebody references: requests, grants, retained handles."""
        return self.size - len(self._free)

    @property
    def usage(self) -> float:
        """Share of the blocks that somebody references, 0.0 to 1.0: vLLM's `kv_cache_usage_perc`."""
        return self.held / self.size

    @property
    def cached_hashes(self) -> frozenset[bytes]:
        """Hashes that the prefix cache knows now."""
        return frozenset(self._cached)

    def find(self, block_hash: bytes) -> Block | None:
        """The cached block with this hash, computed or not."""
        copies = self._cached.get(block_hash)
        return next(iter(copies.values())) if copies else None

    def longest_run(self, hashes: Iterable[bytes], *, computed_only: bool = False) -> list[Block]:
        """Cached blocks for the longest prefix of `hashes`; not referenced yet."""
        run: list[Block] = []
        for block_hash in hashes:
            block = self.find(block_hash)
            if block is None or (computed_only and not block.computed):
                break
            run.append(block)
        return run

    def touch(self, blocks: Iterable[Block]) -> None:
        """Take a reference on each block."""
        for block in blocks:
            if block.references == 0:
                del self._free[block.id]
            block.references += 1

    def allocate(self, count: int) -> list[Block]:
        """Take `count` empty blocks, evicting the least recently used from the prefix cache."""
        if count > len(self._free):
            raise NoRoomError(f"{count} blocks asked for, {len(self._free)} free")
        taken: list[Block] = []
        for _ in range(count):
            _, block = self._free.popitem(last=False)
            self._forget(block)
            block.references, block.computed = 1, False
            block.overwrite(b"")
            taken.append(block)
        return taken

    def release(self, blocks: Sequence[Block]) -> None:
        """Give back one reference on each block; the tail of a sequence is evicted before its head."""
        for block in reversed(blocks):
            block.references -= 1
            if block.references == 0:
                self._free[block.id] = block

    def cache(self, block: Block, block_hash: bytes) -> None:
        """Make a block findable. A second block with the same hash is kept beside the first, as in vLLM."""
        if self.caching and block.hash is None:
            block.hash = block_hash
            self._cached.setdefault(block_hash, {})[block.id] = block

    def reset(self) -> bool:
        """Forget every cached block; refused (False) while any block is referenced."""
        if self.held:
            return False
        for block in self.blocks:
            self._forget(block)
        return True

    def _forget(self, block: Block) -> None:
        if block.hash is None:
            return
        copies = self._cached[block.hash]
        del copies[block.id]
        if not copies:
            del self._cached[block.hash]
        block.hash = None


class NoRoomError(Exception):
    """Fewer blocks are free than were asked for."""
