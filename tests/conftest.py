"""What every test shares: a machine kept small and offline, and the markers that need one."""

from __future__ import annotations

import functools
import importlib.util
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

# Before anything imports torch, which reads them once. Tests share their machine with browsers, and where
# several files run at a time with each other.
os.environ.setdefault("OMP_NUM_THREADS", "1" if "PYTEST_XDIST_WORKER" in os.environ else "2")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault(
    "LOCAL_WORLD_SIZE", str(os.cpu_count())
)  # a test, and a script that it starts, has one core
# A test makes its own small model; one that reaches for a hub should fail at once, not time out.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Nothing that a test trains is for its user's project.
os.environ.pop("WANDB_PROJECT", None)
os.environ.pop("TENSORBOARD_LOGGING_DIR", None)

import pytest
import pytest_asyncio
from hypothesis import settings

if TYPE_CHECKING:  # slow to import: only the tests that use them do
    from stand_in import World
    from transformers import PreTrainedModel

    from minirl.browser.pool import BrowserPool
    from minirl.browser.session import Session
    from minirl.distributed import Ranks
    from minirl.model import Preprocessor
    from minirl.trainer import Trainer
    from minirl.types import Group, Prompt

# An example's time says more about the machine's load than about the code.
settings.register_profile("minirl", deadline=None)
settings.load_profile("minirl")


def pytest_configure(config: pytest.Config) -> None:
    """Tests compare in float32 on the CPU, where on a GPU minirl computes in bfloat16. Only those marked
    `gpu`, which are run on their own, see one; so do processes that they start."""
    if config.option.markexpr != "gpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


ROOT = Path(__file__).parents[1]
# The longest first: were they last, one process would still be at them when the others have ended.
LONG = "train replay checkpoint distributed train_text hostile render eval resume openwebrl"
FIRST = [f"test_{name}.py" for name in LONG.split()]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first. Tests marked `gpu`, `vllm` or `apps` are skipped, not failed, where there is
    none."""
    items.sort(key=lambda item: FIRST.index(item.path.name) if item.path.name in FIRST else len(FIRST))
    for item in items:
        if item.get_closest_marker("vllm") and importlib.util.find_spec("vllm") is None:
            item.add_marker(pytest.mark.skip(reason="vLLM is not installed"))
        if item.get_closest_marker("apps") and not (ROOT / ".venv-apps").is_dir():
            item.add_marker(pytest.mark.skip(reason="`make test-apps` has installed no application"))
        if item.get_closest_marker("gpu") and not has_gpu():
            item.add_marker(pytest.mark.skip(reason="no NVIDIA GPU"))


def has_gpu() -> bool:
    import torch  # slow to import: only when a test marked `gpu` was collected

    return torch.cuda.is_available()


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    """The address of a server with the pages of pages.py; a module with other pages has its own."""
    import pages

    with pages.serve() as address:
        yield address


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def pool(request: pytest.FixtureRequest) -> AsyncIterator[BrowserPool]:
    """Browsers as the module's CONFIG says; a module with sites, or with more to check, has its own."""
    from minirl.browser.pool import BrowserPool

    async with BrowserPool(request.module.CONFIG) as pool:
        yield pool


@pytest_asyncio.fixture(loop_scope="module")
async def session(pool: BrowserPool) -> AsyncIterator[Session]:
    """An episode's browser, in the module's `pool`."""
    async with pool.session() as session:
        yield session


@pytest.fixture
def local(monkeypatch) -> None:
    """WebArena's sites have addresses, and what is wrong there stays wrong: no need to wait each time."""
    from minirl.benchmarks.webarena import benchmark
    from minirl.benchmarks.webarena.tasks import SITES

    monkeypatch.setattr(benchmark, "LATE_SECONDS", 0.3)
    monkeypatch.setattr(benchmark, "LOOK_SECONDS", 0.05)
    for name in SITES:
        monkeypatch.setenv(name, f"http://{name.lower().replace('_', '-')}.test")


@pytest.fixture
def world(monkeypatch, local) -> Iterator[World]:
    """Stand-ins of WebArena's sites, named as users name theirs."""
    import stand_in

    with stand_in.serve() as world:
        for name, address in world.sites.items():
            monkeypatch.setenv(name, address)
        yield world


@pytest.fixture(scope="module")
def eval_script() -> ModuleType:
    """eval.py, which is a script and whose name is a builtin's."""
    spec = importlib.util.spec_from_file_location("eval_script", Path(__file__).parent.parent / "eval.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def ended(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    """`ended(train, "tiny", "--steps", "many")`: runs a script that ends early, in this process, which has
    all imports behind it; its exit status and what it wrote to stderr."""
    from minirl.cli.command_line import run_main

    def run(script: ModuleType, *argv: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", [Path(script.__file__).name, *argv])
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            run_main(script.run)
        return stop.value.code, capsys.readouterr().err

    return run


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Qwen3-VL of half a million parameters, as the Hugging Face folder that any other model would be."""
    from examples.base_models import checkpoints as tiny

    texts = tiny.corpus(["mug", "plate", "red", "blue"], "http://shop-0.test/")
    return tiny.build(tmp_path_factory.mktemp("tiny") / "model", texts, seed=0, hidden=64, layers=2)


@pytest.fixture(scope="session")
def hybrid_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same as a Qwen3.5: three of its four layers are gated delta rules."""
    from examples.base_models import checkpoints as tiny

    texts = tiny.corpus(["mug", "plate", "red", "blue"], "http://shop-0.test/")
    path = tmp_path_factory.mktemp("hybrid") / "model"
    return tiny.build(path, texts, seed=0, hidden=64, kind="hybrid")


@pytest.fixture(scope="session")
def preprocessor(tiny_folder: Path) -> Preprocessor:
    """The small model's tokenizer, chat format and image processor."""
    from minirl.config import ModelConfig
    from minirl.model import load_preprocessor

    return load_preprocessor(ModelConfig(path=str(tiny_folder)))


@pytest.fixture(scope="session")
def model(tiny_folder: Path) -> PreTrainedModel:
    """The small model's weights, for tests that leave them as they are."""
    import torch

    from minirl.config import ModelConfig
    from minirl.model import load_model

    return load_model(ModelConfig(path=str(tiny_folder)), torch.device("cpu")).eval()


@pytest.fixture(scope="module")  # not longer: a script that runs in a test's process opens its own
def ranks() -> Iterator[Ranks]:
    """This process alone, as the only rank."""
    from minirl.distributed import open_ranks

    with open_ranks() as ranks:
        yield ranks


@pytest.fixture
def new_trainer(tiny_folder: Path, ranks: Ranks) -> Callable[..., Trainer]:
    """`new_trainer(micro_tokens=64, epochs=2, lr=1e-3)`: a trainer on a fresh copy of the small model."""
    from training import make_trainer

    return functools.partial(make_trainer, tiny_folder, ranks)


@pytest.fixture
def groups(preprocessor: Preprocessor) -> list[Group]:
    """Two tasks with three episodes each; `training.make_groups` says more."""
    from training import make_groups

    return make_groups(preprocessor)


@pytest.fixture(scope="session")
def png() -> Callable[..., bytes]:
    """Makes pictures: `png(64, 96, seed=1)` is 64 wide, 96 high, and unlike `png(64, 96, seed=2)`.

    With patches of 16 pixels, merged 2 by 2, it takes 2 x 3 image pads.
    """
    import io

    import numpy as np
    from PIL import Image

    def make(width: int, height: int, seed: int = 0) -> bytes:
        pixels = np.random.default_rng(seed).integers(0, 256, (height // 16, width // 16, 3), dtype=np.uint8)
        out = io.BytesIO()
        Image.fromarray(pixels).resize((width, height)).save(out, "PNG")
        return out.getvalue()

    return make


@pytest.fixture
def prompts(preprocessor, png) -> list[Prompt]:
    """Six prompts of unequal length with zero to two pictures."""
    from minirl.types import Prompt

    start, end = (preprocessor.tokenizer.convert_tokens_to_ids(f"<|vision_{w}|>") for w in ("start", "end"))
    sizes = [[(64, 64)], [], [(32, 96), (64, 32)], [(96, 64)], [], [(32, 32)]]
    out = []
    for n, shown in enumerate(sizes):
        pictures = tuple(png(*size, seed=n) for size in shown)
        ids = (1, *range(40, 43 + 2 * n))
        for picture in pictures:
            ids += (start, *[preprocessor.pad] * preprocessor.image_tokens(picture), end, 30 + n)
        out.append(Prompt(ids, shared=0, images=pictures))
    return out


@pytest.fixture
def names(monkeypatch) -> dict[str, Any]:
    """The names that resolve, to these addresses; each one that is looked up is added to "asked"."""
    known: dict[str, Any] = {"asked": []}
    real = socket.getaddrinfo

    def lookup(host: str, port: int, *args: Any, **kwargs: Any) -> list[Any]:
        if host[0].isdigit() or ":" in host:
            return real(host, port, *args, **kwargs)
        known["asked"].append(host)
        if host not in known:
            raise socket.gaierror(socket.EAI_NONAME, "unknown")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, port)) for ip in known[host]]

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    return known
