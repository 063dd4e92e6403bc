"""What a reader knows of one request: what it asked, which grant it took, what is being read, and what became of it. Data only."""

from __future__ import annotations

from dataclasses import dataclass

from pdd_connector.claims.inquiry import Inquiry, Portion
from pdd_connector.claims.messages import Grant, Welcome
from pdd_connector.claims.params import Address, ClaimParams, Receipt


@dataclass(frozen=True)
class Read:
    """One read for the workers: blocks of `welcome`'s engine into our own, pairwise. Times on this host's monotonic clock."""

    request_id: str
    claim_id: str
    registration: int
    owner: Address
    welcome: Welcome
    remote_blocks: tuple[int, ...]
    local_blocks: tuple[int, ...]
    give_up_at: float  # slower: compute
    proven_until: float  # from then on the owner may have let the blocks go: what arrives later proves nothing


@dataclass(frozen=True)
class Taken:
    """A grant that will be read, once there is room: `portion` of it, behind `first_block` local blocks."""

    owner: Address
    welcome: Welcome
    grant: Grant
    first_block: int
    portion: Portion


@dataclass
class Question:
    """What one request wants to know, and where it stands."""

    request_id: str
    params: ClaimParams
    prompt_tokens: int
    asked_at: float
    local_tokens: int = 0
    inquiry: Inquiry | None = None
    ask_id: bytes = b""
    answer_seconds: float | None = None
    taken: Taken | None = None
    read: Read | None = None
    read_at: float = 0.0
    receipt: Receipt | None = None
    introducing: tuple[Address, ...] = ()
