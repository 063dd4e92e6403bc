"""What the table of rules would notice: where a rule is taken out of the CRD, its bad example is no longer refused in its words.

Not one variant of the CRD for each rule, which takes minutes to compile: one lacks every other rule, one has only those. Messages are
unique to a rule, so that a refusal by another rule is told apart.
"""

from __future__ import annotations

from crd import Example, crd, examples, manifest, rules_of, without_rules
from crd_server import CRDS, CrdServer, install

MESSAGES = sorted({rule["message"] for _, rule in rules_of(crd())})


def _says(server: CrdServer, example: Example, message: str) -> bool:
    bad = example.bad
    if bad.before is None:
        verdict = server.judge(bad.manifest)
    else:
        verdict = server.judge_change(manifest(bad.name, bad.before), bad.manifest)
    return message in [text for _, text in verdict.causes]


def test_a_rule_that_is_taken_out_is_missed(server: CrdServer) -> None:
    halves = (MESSAGES[::2], MESSAGES[1::2])
    for number, missing in enumerate(halves):
        group = f"control-{number}.pdserve.io"
        definition = without_rules(crd(), missing)
        definition["metadata"]["name"] = f"pddeployments.{group}"
        definition["spec"]["group"] = group
        definition["spec"]["names"] |= {"categories": [], "shortNames": []}
        install(server.api, definition)
        variant = CrdServer(server.api, server.namespace, group)
        for example in examples():
            (message,) = (message for message in MESSAGES if message.startswith(example.rule))
            assert _says(variant, example, message) is (message not in missing), message
        server.api.delete(f"{CRDS}/{definition['metadata']['name']}")
