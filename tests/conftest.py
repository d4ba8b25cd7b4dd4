"""What every test shares: a machine kept small and offline, and the markers that need one."""

from __future__ import annotations

import importlib.util
import os

# Before anything imports torch, which reads them once. Tests share their machine with browsers.
os.environ.setdefault("OMP_NUM_THREADS", "2")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# A test makes its own small model; one that reaches for a hub should fail at once, not time out.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
from hypothesis import settings

# An example's time says more about the machine's load than about the code.
settings.register_profile("minirl", deadline=None)
settings.load_profile("minirl")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests marked `gpu` or `vllm` are skipped, not failed, where there is none."""
    for item in items:
        if item.get_closest_marker("vllm") and importlib.util.find_spec("vllm") is None:
            item.add_marker(pytest.mark.skip(reason="vLLM is not installed"))
        if item.get_closest_marker("gpu") and not has_gpu():
            item.add_marker(pytest.mark.skip(reason="no NVIDIA GPU"))


def has_gpu() -> bool:
    import torch  # slow to import: only when a test marked `gpu` was collected

    return torch.cuda.is_available()
