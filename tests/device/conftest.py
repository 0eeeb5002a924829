"""The simulated devices are a backend registered in Python, which older releases of torch do not have."""

import torch

collect_ignore_glob = [] if hasattr(torch._C, "_acc") else ["test_*.py"]
