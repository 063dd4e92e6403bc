"""Lets vLLM's processes sleep for a moment where they spin, on a host whose cores compute the model.

An engine's processes wait for each other in a loop of `sched_yield`, up to a second after each message. On cores that they share with what they wait
for, that is worse than waste: processes that had yielded 400,000 times in a second were seen not to run again for 5 to 20 s, in the middle of a step
(on Linux 6.18; why was not shown, a small benchmark did not reproduce it). With GPUs the loop is left as it is. No file of vLLM is edited.
"""

from __future__ import annotations

import time
from typing import Final

NAP_SECONDS: Final = 5e-5
"""A step takes a hundred times as long; the kernel makes about twice this of it."""


def nap_instead_of_yielding() -> None:
    """From now on this process sleeps between two looks at vLLM's message queue."""
    from vllm.distributed.device_communicators import shm_broadcast

    vars(shm_broadcast).update(sched_yield=_nap)


def _nap() -> None:
    time.sleep(NAP_SECONDS)
