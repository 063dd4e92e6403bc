import sys

import pytest
from chart import Chart

from pdd_e2e.control_plane.helm import find_helm


@pytest.fixture(scope="session")
def chart() -> Chart:
    return Chart(find_helm(say=lambda line: print(line, file=sys.stderr)))
