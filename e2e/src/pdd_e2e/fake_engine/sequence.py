"""One sequence in the engine: its tokens, the blocks they are in, and how the next token is drawn. State, no I/O."""

from collections.abc import Sequence as Tokens
from dataclasses import dataclass, field

from pdd_e2e.fake_engine.blocks import Block, chained_hash
from pdd_e2e.fake_engine.claims import Receipt
from pdd_e2e.fake_engine.model import Candidate, candidates, choose, context_digest, slot_kv
from pdd_e2e.fake_engine.tokens import END


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is chosen, always the same way for the same seed. `forced` tokens are generated as they stand, then the answer ends."""

    max_tokens: int
    temperature: float = 0.0
    seed: int = 0
    min_tokens: int = 0
    ignore_eos: bool = False
    forced: tuple[int, ...] | None = None


@dataclass(slots=True, eq=False)
class Sequence:
    """A prompt and what has been generated from it.

    `computed` tokens have their KV in `blocks`; `cached_tokens` of the prompt were not computed by this request but found
    (locally) or read (from another engine), `read_tokens` of them read.
    """

    prompt: tuple[int, ...]
    block_size: int
    sampling: Sampling
    salt: str | None = None
    tokens: list[int] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    computed: int = 0
    cached_tokens: int | None = None
    read_tokens: int = 0
    receipt: Receipt | None = None
    _hashes: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tokens = list(self.prompt)

    @property
    def generated(self) -> int:
        """Number of tokens generated so far."""
        return len(self.tokens) - len(self.prompt)

    def hashes(self, full_blocks: int) -> list[bytes]:
        """Chained hashes of the first so many full blocks (never more than there are)."""
        for index in range(len(self._hashes), min(full_blocks, len(self.tokens) // self.block_size)):
            parent = self._hashes[-1] if self._hashes else None
            body = self.tokens[index * self.block_size : (index + 1) * self.block_size]
            self._hashes.append(chained_hash(parent, body, self.salt))
        return self._hashes[:full_blocks]

    def usable_hashes(self) -> list[bytes]:
        """Hashes of the blocks that may be reused: all full ones that leave at least one token to compute."""
        return self.hashes((len(self.tokens) - 1) // self.block_size)

    def blocks_needed(self) -> int:
        """Blocks for all tokens so far."""
        return -(-len(self.tokens) // self.block_size)

    def write(self) -> None:
        """Compute the KV of every token that lacks it, from the blocks as they are."""
        earlier = b""
        for position in range(self.computed, len(self.tokens)):
            index = position // self.block_size
            if position == self.computed or position % self.block_size == 0:
                earlier = context_digest(block.digest for block in self.blocks[:index])
            block = self.blocks[index]
            block.write(slot_kv(earlier, bytes(block.kv), self.tokens[position]))
            if position % self.block_size == self.block_size - 1:
                block.computed = True
        self.computed = len(self.tokens)

    def next_token(self) -> tuple[Candidate, Tokens[Candidate]]:
        """The next token and its rivals, from the content of the blocks."""
        context = context_digest(block.digest for block in self.blocks)
        sampling = self.sampling
        end_allowed = not sampling.ignore_eos and self.generated >= max(1, sampling.min_tokens)
        possible = candidates(context, end_allowed=end_allowed)
        if sampling.forced is not None:
            token = sampling.forced[self.generated] if self.generated < len(sampling.forced) else END
            return Candidate(token, possible[0].logprob), possible
        return choose(possible, context, temperature=sampling.temperature, seed=sampling.seed), possible
