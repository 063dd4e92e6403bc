"""What docs/samples/ holds is what the operator takes."""

from pathlib import Path

import pytest
import yaml

from pdd_operator.api.v1alpha1 import PDDeployment

SAMPLES = sorted((Path(__file__).parents[2] / "docs" / "samples").glob("*.yaml"))


def test_there_are_samples() -> None:
    assert {path.stem for path in SAMPLES} >= {"cpu-sockets", "p5en-efa"}


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_the_operator_takes_the_sample(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    deployment = PDDeployment.model_validate(yaml.safe_load(text))
    assert deployment.spec.model.name
    with pytest.raises(ValueError, match="extra"):
        PDDeployment.model_validate(yaml.safe_load(text + "  replica: 3\n"))
