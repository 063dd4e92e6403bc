"""kubectl, asked for what it makes of scalars without quotes: the table that `pdd render` is held to."""

from __future__ import annotations

import json

from scalars import AS_TEXT, AS_VALUES

from pdd_cli.yaml_text import load_all
from pdd_e2e.control_plane.local_control_plane import LocalControlPlane


def test_kubectl_reads_scalars_as_we_do(control_plane: LocalControlPlane) -> None:
    scalars = "".join(f"  - {text}\n" for text in (*AS_TEXT, *AS_VALUES))
    text = f"apiVersion: example.org/v1\nkind: Example\nmetadata: {{name: scalars}}\nspec:\n{scalars}"
    said = json.loads(control_plane.kubectl("annotate", "--local", "-f", "-", "a=b", "-o", "json", stdin=text))
    assert _alike(said["spec"]) == _alike([*AS_TEXT, *AS_VALUES.values()])
    assert _alike(load_all(text)[0]["spec"]) == _alike(said["spec"])


def _alike(values: list[object]) -> list[object]:
    """JSON has one kind of number; that true is not 1 shows in the text."""
    return [
        float(value) if type(value) is int else str(value) if value is True or value is False else value
        for value in values
    ]
