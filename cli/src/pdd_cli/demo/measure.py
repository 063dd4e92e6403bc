"""Measures what a prompt costs on the prefill engine, straight and uncached, so that the conversation gets a length that fits this machine."""

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass

import aiohttp

from pdd_cli.demo.calibration import PrefillCost, Probe, fit
from pdd_cli.demo.conversation import TokenRates, log_lines, prose
from pdd_cli.errors import StartError
from pdd_cli.local.engine import Engine
from pdd_cli.local.progress import Task

_WARM_UP_CHARACTERS = 400
_PROSE_CHARACTERS = 1400
_LOG_CHARACTERS = 2400
_TIMEOUT = aiohttp.ClientTimeout(total=180)


@dataclass(frozen=True, slots=True)
class Measured:
    """What prefill costs here, and how many characters a token of the two kinds of text has."""

    cost: PrefillCost
    rates: TokenRates
    probes: tuple[Probe, ...]


async def measure(engine: Engine, others: Sequence[Engine], session: aiohttp.ClientSession, task: Task) -> Measured:
    """Measure `engine` by a prompt of prose and one of log lines; all engines are warmed up first, for the first prompt of each is slow.

    Some 20 s on two slow cores. Raises StartError if one fails.
    """
    for one in (engine, *others):
        task.note(f"warming up {one.name}")
        await _probe(one, session, prose(_WARM_UP_CHARACTERS))
    task.note("a short prompt")
    words = prose(_PROSE_CHARACTERS)
    short = await _probe(engine, session, words)
    task.note("a longer prompt")
    lines = log_lines(_LOG_CHARACTERS)
    long = await _probe(engine, session, lines)
    rates = TokenRates(prose=len(words) / short.tokens, log=len(lines) / long.tokens)
    return Measured(fit([short, long]), rates, (short, long))


async def _probe(engine: Engine, session: aiohttp.ClientSession, text: str) -> Probe:
    body = {
        "model": engine.spec.served_name,
        "prompt": text,
        "max_tokens": 1,
        "temperature": 0,
        "cache_salt": secrets.token_urlsafe(16),  # nothing before it is found, nothing after it finds it
    }
    started = time.perf_counter()
    async with session.post(f"{engine.url}/v1/completions", json=body, timeout=_TIMEOUT) as answer:
        if answer.status != 200:
            raise StartError(f"{engine.name} answered {answer.status} to a plain prompt: {(await answer.text())[:300]}")
        usage = (await answer.json())["usage"]
    return Probe(int(usage["prompt_tokens"]), time.perf_counter() - started)
