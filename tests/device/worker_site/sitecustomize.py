"""The made-up devices in each Python that iobench starts for a case: Python imports this by itself."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent))

import backend
import pytest
from machine import SCHEDULES, Machine
from plugged import wire

wire(pytest.MonkeyPatch())
backend._plugged.append(Machine(SCHEDULES["everything late"]()))
