"""What to do is said in the same words here and in docs/conditions.md."""

import re
from pathlib import Path

from pdd_cli.status.remedies import REMEDIES
from pdd_operator.observe.reasons import Reason

PAGE = Path(__file__).parents[3] / "docs" / "conditions.md"


def documented() -> dict[str, str]:
    section = PAGE.read_text(encoding="utf-8").split("\n## Reasons\n", 1)[1].split("\n## ", 1)[0]
    return {
        match[1]: match[2].strip() for match in re.finditer(r"^\| `(\w+)` \| [^|]* \| (.*) \|$", section, re.MULTILINE)
    }


def test_every_reason_has_the_words_of_the_page() -> None:
    assert documented() == {reason.value: remedy for reason, remedy in REMEDIES.items()}
    assert set(REMEDIES) == set(Reason)
