"""crds/README.md is what `make docs` makes, and has every rule in it."""

from __future__ import annotations

import yaml
from crd import EXAMPLES_FILE, REPOSITORY, crd, rules_of

from pdd_operator.api.reference import reference

README = REPOSITORY / "crds" / "README.md"


def test_readme_is_up_to_date() -> None:
    examples = yaml.safe_load(EXAMPLES_FILE.read_text(encoding="utf-8"))
    assert README.read_text(encoding="utf-8") == reference(crd(), examples), "run `make docs`"


def test_readme_has_every_rule() -> None:
    text = README.read_text(encoding="utf-8")
    assert [rule["message"] for _, rule in rules_of(crd()) if rule["message"] not in text] == []
