"""Plugs the simulated devices into each Python started for a case; imported by Python itself."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent))

import backend
import pytest
from plugged import wire
from sim_machine import SCHEDULES, Machine

wire(pytest.MonkeyPatch())
backend._plugged.append(Machine(SCHEDULES["everything late"]()))
