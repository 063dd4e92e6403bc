"""The suite on a cluster must be able to fail: takes one guard out of the product, installs that, and expects a named test to notice.

`python -m pdd_e2e.kind_suite.mutations [NAME ...]`. Works on a copy of the sources; the cluster is the suite's own.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from pdd_e2e.cluster.errors import ClusterError
from pdd_e2e.cluster.product_images import ROOT
from pdd_e2e.cluster.provider import CONTEXT_VARIABLE
from pdd_e2e.cluster.shell import run

TESTS = ROOT / "e2e" / "tests" / "kind"
MUTATIONS = TESTS / "mutations.yaml"
_TIMEOUT_SECONDS = 1800.0


@dataclass(frozen=True, slots=True)
class Mutation:
    """In `file`, the only `old` becomes `new`; then `test` (FILE::FUNCTION in tests/kind) fails, because `why`."""

    name: str
    file: str
    old: str
    new: str
    test: str
    why: str

    def apply(self, sources: Path) -> None:
        """Raises ClusterError where `old` is not there exactly once: the guard has moved."""
        path = sources / self.file
        text = path.read_text()
        if text.count(self.old) != 1:
            raise ClusterError(
                f"mutation {self.name}: {self.file} has its old text {text.count(self.old)} times, not 1"
            )
        path.write_text(text.replace(self.old, self.new))


def load_mutations(file: Path = MUTATIONS) -> list[Mutation]:
    """All of them, in the file's order."""
    return [Mutation(**item) for item in yaml.safe_load(file.read_text())]


def noticed(report: Path, function: str) -> bool:
    """Whether a JUnit report has a failure of `function` itself: an error before it proves nothing."""
    cases = ET.parse(report).getroot().iter("testcase")  # noqa: S314  # written by the pytest that was just run
    return any(
        case.get("name", "").partition("[")[0] == function and case.find("failure") is not None for case in cases
    )


def copy_sources(target: Path) -> None:
    """What images and the chart are made of, as it is in the working tree."""
    listed = run(["git", "-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard"]).split("\0")
    for name in filter(None, listed):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, target / name)


def try_mutation(mutation: Mutation) -> bool:
    """Whether its test noticed. Raises ClusterError."""
    with tempfile.TemporaryDirectory(prefix="pdd-mutation-") as folder:
        sources, report = Path(folder) / "sources", Path(folder) / "report.xml"
        copy_sources(sources)
        mutation.apply(sources)
        test = TESTS / mutation.test
        command = [sys.executable, "-m", "pytest", "-p", "no:randomly", "-q", f"--junitxml={report}", str(test)]
        environment = {**os.environ, "PDD_E2E_SOURCES": str(sources), "PDD_E2E_KEEP": "1"}
        try:
            subprocess.run(command, cwd=ROOT / "e2e", env=environment, timeout=_TIMEOUT_SECONDS, check=False)  # noqa: S603  # this Python
        except subprocess.TimeoutExpired:
            raise ClusterError(f"mutation {mutation.name}: its test did not end in {_TIMEOUT_SECONDS:.0f} s") from None
        return report.is_file() and noticed(report, mutation.test.rpartition("::")[2])


def main(arguments: Sequence[str] | None = None) -> int:
    """0 if every mutation was noticed, 1 if one was not."""
    parser = argparse.ArgumentParser(prog="python -m pdd_e2e.kind_suite.mutations", description=__doc__)
    known = load_mutations()
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(m.name for m in known)}; default: all")
    wanted = parser.parse_args(arguments).names
    if unknown := sorted(set(wanted) - {mutation.name for mutation in known}):
        parser.error(f"no mutation is named {', '.join(unknown)}")
    if os.environ.get(CONTEXT_VARIABLE):
        parser.error(f"images of a changed product are loaded into the cluster by kind only: unset {CONTEXT_VARIABLE}")
    missed = []
    for mutation in known:
        if wanted and mutation.name not in wanted:
            continue
        began = time.monotonic()
        print(f"== {mutation.name}: {mutation.why}", flush=True)
        found = try_mutation(mutation)
        missed += [] if found else [mutation.name]
        print(
            f"== {mutation.name}: {'noticed' if found else 'NOT NOTICED'}, {time.monotonic() - began:.0f} s", flush=True
        )
    print(f"not noticed: {', '.join(missed) or 'none'}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
