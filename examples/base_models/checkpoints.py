"""Random tiny checkpoints: the real Qwen3-VL and Llama architectures at about 1M parameters, for laptops.

`build` writes one as an ordinary Hugging Face folder. Its byte-level BPE can
spell any text; the words, tool-call pieces and round coordinates of its world, or a text agent's attributes,
are single tokens, which keeps responses short.
"""

import itertools
import json
import shutil
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.models.qwen3_vl import Qwen3VLConfig, Qwen3VLForConditionalGeneration

from minirl.agents.openwebrl import SCALE, TOOLS, system_prompt
from minirl.agents.webagent_r1 import ACTIONS, LEFT_OUT
from minirl.agents.webagent_r1 import system_prompt as prompt
from minirl.model import save_model
from minirl.worlds.hand import GRID
from minirl.worlds.scripted_agent import with_thought
from minirl.worlds.shop import CHOICES, SHOP

DONE = {"name": "done", "arguments": {"response": "done"}}
PAGES, OFTEN = 400, 5  # pages that a small tokenizer learns from, and how often it reads everything else

FOLDER = Path(__file__).parent
# ChatML as Qwen3-VL-Thinking's template writes it: the assistant's turn opens inside <think>
CHAT_TEMPLATE = FOLDER.joinpath("chat_template.jinja").read_text(encoding="utf-8").removesuffix("\n")
TEXT_TEMPLATE = CHAT_TEMPLATE.replace("<|im_start|>assistant\n<think>\n", "<|im_start|>assistant\n")
SETTINGS = tomllib.loads(FOLDER.joinpath("checkpoints.toml").read_text(encoding="utf-8"))


def corpus(said: Iterable[str], url: str, pages: Iterable[str] = ()) -> list[str]:
    texts = [system_prompt(brief=True), "".join(f"[{n}, {n}][ {n}, {n}]" for n in range(0, SCALE + 1, GRID))]
    for word in said:
        texts += [f"choose {word} {word}, {word}.", f'clicked button "{word}" at [500, 500].']
    for page in (*pages, "Done"):
        place = f"{url}#{page.upper().replace(' ', '_')}"
        texts.append(SETTINGS["message"].format(page=page, url=place))
    for name, arguments in TOOLS.items():
        values = {a: [0, 0] if kind == "point" else usual for a, (kind, usual) in arguments.items()}
        texts.append(json.dumps({"name": name, "arguments": values}, default=str))
    return [*texts, json.dumps(DONE), "system\n", "assistant\n"]


def words() -> list[str]:
    offered = [word for choice in CHOICES.values() for word in choice["words"]]
    return [*offered, *map(str.lower, SHOP["buttons"].values())]


def vocabulary() -> list[str]:
    phrases = [choice["phrase"].format("") for choice in CHOICES.values()]
    pages = [" ".join(fields).capitalize() for n in (1, 2) for fields in itertools.combinations(CHOICES, n)]
    said = [*words(), *SHOP["buttons"].values(), *map(str, range(1, 10))]
    return corpus(said, "http://shop-10.test/", pages) + ["Click a, b. choose a no", *phrases]


def text_corpus(shops: Iterable[Iterable[Any]]) -> list[str]:
    """Return what a text agent's tokenizer learns from: pages, and often the words of orders and answers."""
    pages = (page.html for shop in shops for page in shop)
    said = [*words(), *SHOP["buttons"].values(), "done"]
    actions = [*(f'do(action="{name}", element="' for name in ACTIONS), 'exit(message="done")']
    texts = [f"Task Instruction: Click {word}, {word} in {word}.\n\nRound 0\n\n" for word in said]
    texts += [with_thought(word, action) for word in said for action in actions]
    texts += [choice["phrase"].format("") for choice in CHOICES.values()] + [LEFT_OUT, " no"] * OFTEN
    return [prompt(brief=True, thinking=True), *texts * OFTEN, *itertools.islice(pages, PAGES)]


def build_tokenizer(texts: Iterable[str], kind: str = "visual") -> PreTrainedTokenizerFast:
    """Return a byte-level BPE over `texts`, with Qwen's control tokens, for one `kind` of checkpoint."""
    parts, alphabet = SETTINGS["tokenizers"][kind], pre_tokenizers.ByteLevel.alphabet()
    bpe, split = Tokenizer(models.BPE()), pre_tokenizers.Split(Regex(parts["chunks"]), "isolated")
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    if "unread" in parts:
        bpe.normalizer = normalizers.Replace(Regex(parts["unread"]), "")
    bpe.pre_tokenizer = pre_tokenizers.Sequence([split, to_bytes])
    bpe.decoder = decoders.ByteLevel()
    settings = {"initial_alphabet": alphabet, "special_tokens": SETTINGS["special"], "show_progress": False}
    trainer = trainers.BpeTrainer(vocab_size=parts["vocabulary"], **settings)
    bpe.train_from_iterator(texts, trainer)
    bpe.add_tokens([AddedToken(token, special=False, normalized=False) for token in parts["markup"]])
    template = CHAT_TEMPLATE if kind == "visual" else TEXT_TEMPLATE
    return PreTrainedTokenizerFast(tokenizer_object=bpe, chat_template=template, **SETTINGS["tokenizer"])


def build(
    path: Path, texts: Iterable[str], seed: int, hidden: int = 128, layers: int = 4, kind: str = "visual"
) -> Path:
    """Write a checkpoint of one kind ("visual", "text") with random weights; return its folder."""
    tokenizer = build_tokenizer(texts, kind)
    sizes: dict[str, Any] = {"hidden_size": hidden, "intermediate_size": 2 * hidden}
    sizes |= {"num_hidden_layers": layers, "vocab_size": len(tokenizer)}
    sizes |= {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    torch.manual_seed(seed)
    if kind == "text":  # a Llama, because transformers replaces a Qwen2.5's tokenizer
        model = LlamaForCausalLM(LlamaConfig(**SETTINGS["llama"], **sizes))
    else:
        parts = SETTINGS["qwen3_vl"]
        text, vision = parts["text_config"] | sizes, parts["vision_config"] | {"out_hidden_size": hidden}
        tokens = {name: tokenizer.convert_tokens_to_ids(token) for name, token in parts["tokens"].items()}
        common: dict[str, Any] = parts["common"] | tokens
        config = Qwen3VLConfig(text_config=text, vision_config=vision, **common)
        model = Qwen3VLForConditionalGeneration(config)
    part = path.with_name(path.name + ".part")  # first, so that `path` is never half a checkpoint
    shutil.rmtree(part, ignore_errors=True)
    save_model(model, part)
    tokenizer.save_pretrained(part)
    if kind != "text":  # AutoProcessor and vLLM tell a Qwen3-VL by these files
        shutil.copytree(FOLDER / "processor", part, dirs_exist_ok=True)
    shutil.rmtree(path, ignore_errors=True)
    part.rename(path)
    return path
