"""Random tiny checkpoints: real Qwen3-VLs, Qwen3.5s and Llamas with about 1M parameters, for laptops.

`build` writes one as an ordinary Hugging Face folder. Its byte-level BPE can spell any text; the words,
tool-call pieces and round coordinates of its world, or a text agent's attributes, are single tokens, which
keeps responses short.
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
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerFast
from transformers.models.qwen3_5 import Qwen3_5Config, Qwen3_5ForConditionalGeneration
from transformers.models.qwen3_vl import Qwen3VLConfig, Qwen3VLForConditionalGeneration

from minirl.agents.openwebrl import TOOLS, system_prompt
from minirl.agents.openwebrl_actions import SCALE
from minirl.agents.webagent_r1 import ACTIONS, LEFT_OUT
from minirl.agents.webagent_r1 import system_prompt as text_system_prompt
from minirl.context import calls_in_tags
from minirl.worlds.hand import GRID
from minirl.worlds.scripted_agent import with_thought
from minirl.worlds.shop import CHOICES, SHOP

DONE = {"name": "done", "arguments": {"response": "done"}}
MAX_PAGES = 400  # that a text agent's tokenizer learns from
REPEATS = 5  # how often it reads everything else

FOLDER = Path(__file__).parent
# ChatML as Qwen3-VL-Thinking's template writes it: the assistant's turn opens inside <think>
CHAT_TEMPLATE = FOLDER.joinpath("chat_template.jinja").read_text(encoding="utf-8").removesuffix("\n")
TEXT_TEMPLATE = CHAT_TEMPLATE.replace("<|im_start|>assistant\n<think>\n", "<|im_start|>assistant\n")
# As Qwen3.5's template writes it: calls in tags, past thoughts only where tools have answered
HYBRID_TEMPLATE = FOLDER.joinpath("chat_template_hybrid.jinja").read_text(encoding="utf-8").removesuffix("\n")
TEMPLATES = {"visual": CHAT_TEMPLATE, "hybrid": HYBRID_TEMPLATE, "text": TEXT_TEMPLATE}
SETTINGS = tomllib.loads(FOLDER.joinpath("checkpoints.toml").read_text(encoding="utf-8"))


def corpus(words: Iterable[str], url: str, pages: Iterable[str] = ()) -> list[str]:
    """Return what a visual agent's tokenizer learns from: prompts, thoughts, feedback and calls, with the
    words that responses name and the pages of one address."""
    coordinates = range(0, SCALE + 1, GRID)
    texts = [system_prompt(brief=True)]
    texts.append("".join(f"[{n}, {n}][ {n}, {n}]" for n in coordinates))
    for word in words:
        texts.append(f"choose {word} {word}, {word}.")
        texts.append(f'Succeed: `click` on <button> type=button "{word}" at (500, 500) executed.')
    for page in (*pages, "Done"):
        address = f"{url}#{page.upper().replace(' ', '_')}"
        texts.append(SETTINGS["message"].format(page=page, url=address))
    for name, tool in TOOLS.items():
        arguments = {}
        for argument, field in tool.model_fields.items():
            usual = ... if field.is_required() else field.default
            arguments[argument] = [0, 0] if "point" in argument else usual
        texts.append(json.dumps({"name": name, "arguments": arguments}, default=str))
    texts.append(json.dumps(DONE))
    return [*texts, "system\n", "assistant\n"]


def shop_words() -> list[str]:
    """Return the words on the controls of all shops, as a thought writes them."""
    words = []
    for choice in CHOICES.values():
        words += choice["words"]
    for label in SHOP["buttons"].values():
        words.append(label.lower())
    return words


def order_phrases() -> list[str]:
    """Return how orders name their choices, without the words."""
    return [choice["phrase"].format("") for choice in CHOICES.values()]


def vocabulary() -> list[str]:
    """Return what the shipped visual model's tokenizer learned from: everything that any shop says."""
    pages = []
    for count in (1, 2):
        for fields in itertools.combinations(CHOICES, count):
            pages.append(" ".join(fields).capitalize())
    numbers = [str(n) for n in range(1, 10)]
    words = [*shop_words(), *SHOP["buttons"].values(), *numbers]
    texts = corpus(words, "http://shop-10.test/", pages)
    return [*texts, "Click a, b. choose a no", *order_phrases()]


def text_corpus(shops: Iterable[Iterable[Any]]) -> list[str]:
    """Return what a text agent's tokenizer learns from: pages, and often the words of orders and answers."""
    words = [*shop_words(), *SHOP["buttons"].values(), "done"]
    actions = [f'do(action="{name}", element="' for name in ACTIONS]
    actions.append('exit(message="done")')
    texts = [f"Task Instruction: Click {word}, {word} in {word}.\n\nRound 0\n\n" for word in words]
    for word in words:
        texts += [with_thought(word, action) for action in actions]
    texts += order_phrases()
    texts += [LEFT_OUT, " no"] * REPEATS
    pages = (page.html for shop in shops for page in shop)
    prompt = text_system_prompt(brief=True, thinking=True)
    return [prompt, *texts * REPEATS, *itertools.islice(pages, MAX_PAGES)]


def calls_of_all_tools() -> list[str]:
    """Return a call of every tool in tags, as a model with that chat template writes them."""
    calls = []
    for name, tool in TOOLS.items():
        arguments = dict.fromkeys(tool.model_fields, "")
        call = json.dumps({"name": name, "arguments": arguments})
        calls.append(calls_in_tags(f"<tool_call>{call}</tool_call>"))
    return calls


def build_tokenizer(texts: Iterable[str], kind: str = "visual") -> PreTrainedTokenizerFast:
    """Return a byte-level BPE over `texts`, with Qwen's control tokens, for one `kind` of checkpoint."""
    parts = SETTINGS["tokenizers"]["text" if kind == "text" else "visual"]
    bpe = Tokenizer(models.BPE())
    if "unread" in parts:
        bpe.normalizer = normalizers.Replace(Regex(parts["unread"]), "")
    split = pre_tokenizers.Split(Regex(parts["chunks"]), "isolated")
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bpe.pre_tokenizer = pre_tokenizers.Sequence([split, to_bytes])
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=parts["vocabulary"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=SETTINGS["special"],
        show_progress=False,
    )
    bpe.train_from_iterator(texts, trainer)
    # Markup is added last, as ordinary tokens: what a model writes keeps it when control tokens are dropped.
    markup = [AddedToken(token, special=False, normalized=False) for token in parts["markup"]]
    bpe.add_tokens(markup)
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe, chat_template=TEMPLATES[kind], **SETTINGS["tokenizer"]
    )


def build(
    path: Path, texts: Iterable[str], seed: int, hidden: int = 128, layers: int = 4, kind: str = "visual"
) -> Path:
    """Write a checkpoint of one kind ("visual", "hybrid", "text") with random weights; return its folder."""
    if kind == "hybrid":
        texts = [*texts, *calls_of_all_tools() * REPEATS]
    tokenizer = build_tokenizer(texts, kind)
    sizes: dict[str, Any] = {
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_hidden_layers": layers,
        "vocab_size": len(tokenizer),
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    torch.manual_seed(seed)
    # A Llama for text, because transformers replaces a Qwen2.5's tokenizer.
    model = random_llama(sizes) if kind == "text" else random_qwen(kind, sizes, tokenizer)

    # Everything is written beside `path` first, so that `path` is never half a checkpoint.
    part = path.with_name(path.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    model.save_pretrained(part)
    tokenizer.save_pretrained(part)
    if kind != "text":  # AutoProcessor and vLLM tell a Qwen3-VL by these files
        shutil.copytree(FOLDER / "processor", part, dirs_exist_ok=True)
    shutil.rmtree(path, ignore_errors=True)
    part.rename(path)
    return path


def random_llama(sizes: dict[str, Any]) -> PreTrainedModel:
    return LlamaForCausalLM(LlamaConfig(**SETTINGS["llama"], **sizes))


def random_qwen(kind: str, sizes: dict[str, Any], tokenizer: PreTrainedTokenizerFast) -> PreTrainedModel:
    """Return a Qwen3-VL, or for "hybrid" a Qwen3.5."""
    parts = SETTINGS["qwen3_5" if kind == "hybrid" else "qwen3_vl"]
    text = parts["text_config"] | sizes
    vision = parts["vision_config"] | {"out_hidden_size": sizes["hidden_size"]}
    common: dict[str, Any] = dict(parts["common"])
    for name, token in SETTINGS["tokens"].items():
        common[name] = tokenizer.convert_tokens_to_ids(token)
    if kind == "hybrid":
        return Qwen3_5ForConditionalGeneration(
            Qwen3_5Config(text_config=text, vision_config=vision, **common)
        )
    return Qwen3VLForConditionalGeneration(Qwen3VLConfig(text_config=text, vision_config=vision, **common))
