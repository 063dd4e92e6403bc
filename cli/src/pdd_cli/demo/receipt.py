"""The router's account of one turn, from the `X-PDD-Receipt` header. Untrusted text in, typed out."""

import json
from dataclasses import dataclass

from pdd_cli.errors import BrokenPromiseError

HEADER = "X-PDD-Receipt"


@dataclass(frozen=True, slots=True)
class Receipt:
    """What the prefill leg did. `owner` is the name of the engine that it read from or asked; tokens and bytes are 0 where nothing was read."""

    prefill: str
    decode: str
    outcome: str
    owner: str | None
    prompt_tokens: int
    local_tokens: int
    read_tokens: int
    read_bytes: int
    seconds: float

    @property
    def computed_tokens(self) -> int:
        """Prompt tokens that the prefill engine had to compute."""
        return self.prompt_tokens - self.local_tokens - self.read_tokens


def parse_receipt(header: str | None, turn: int) -> Receipt:
    """Raises BrokenPromiseError if the header is missing or says something else than expected."""
    if header is None:
        raise BrokenPromiseError(f"turn {turn} came without a {HEADER} header: is this another router?")
    try:
        value = json.loads(header)
        prefill, decode = value["prefill"], value["decode"]
        return Receipt(
            prefill=str(prefill["engine"]),
            decode=str(decode["engine"]),
            outcome=str(prefill["outcome"]),
            owner=None if prefill["owner"] is None else str(prefill["owner"]),
            prompt_tokens=int(prefill["prompt_tokens"]),
            local_tokens=int(prefill["local_tokens"]),
            read_tokens=int(prefill["read_tokens"]),
            read_bytes=int(prefill["read_bytes"]),
            seconds=float(prefill["seconds"]),
        )
    except (ValueError, TypeError, KeyError) as problem:
        raise BrokenPromiseError(
            f"turn {turn} has a {HEADER} header that cannot be read ({problem!r}): {header:.200}"
        ) from None
