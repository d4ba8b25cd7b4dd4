"""A checkpoint's adapters in vLLM's own LoRA loader: base and adapters are the policy that was trained."""

from functools import partial

import pytest
from test_vllm import NEAR, gap, open_trainer, rows_of, sample
from training import save_text_model

from minirl.checkpoint import Checkpoints
from minirl.samplers import vllm_engine
from minirl.samplers.vllm import VllmSampler


@pytest.mark.vllm
@pytest.mark.parametrize("kind", ["visual", "text"])
async def test_vllm_reads_adapters(kind, tiny_folder, preprocessor, prompts, ranks, tmp_path, monkeypatch):
    """Without them its log-probs are the base's, which is the control."""
    from vllm.distributed import parallel_state
    from vllm.lora.request import LoRARequest

    # vLLM keeps a group of the ranks that it first met: those of another module's tests have ended
    monkeypatch.setattr(parallel_state, "_WORLD", None)
    folder = tiny_folder
    if kind == "text":
        settings = {"hidden_size": 128, "tie_word_embeddings": False}
        folder = save_text_model(tmp_path / "llama", preprocessor, "Llama", **settings)
        prompts = [prompt for prompt in prompts if not prompt.images]
    trainer = open_trainer(folder, ranks, lora=8)
    plain = vllm_engine.engine_settings
    more = {"enable_lora": True, "max_lora_rank": 8, "max_loras": 1}
    monkeypatch.setattr(vllm_engine, "engine_settings", lambda *given: plain(*given) | more)
    monkeypatch.setattr(vllm_engine, "CPU_CACHE_BYTES", 1 << 25)
    sampler = VllmSampler(trainer.config, trainer.preprocessor, ranks)
    try:
        rows = rows_of(prompts, await sample(sampler, prompts))
        assert gap(trainer, rows) < NEAR
        for _ in range(3):
            trainer.sft_update(rows, lr=3e-3)
        Checkpoints(trainer, tmp_path).export("best", {})
        assert gap(trainer, rows_of(prompts, await sample(sampler, prompts))) > 0.01
        adapter = LoRARequest("best", 1, str(tmp_path / "best/adapter"))
        add = sampler.engine.add_request
        monkeypatch.setattr(sampler.engine, "add_request", partial(add, lora_request=adapter))
        assert gap(trainer, rows_of(prompts, await sample(sampler, prompts))) < NEAR
    finally:
        sampler.close()
