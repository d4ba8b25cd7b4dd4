"""The tiny checkpoints: the real Qwen3-VL and Llama architectures at about 1M parameters, with tokenizers
of their own.

Made once per run folder from the words of the generated world, so that the whole loop can be watched on
a laptop. It is an ordinary Hugging Face folder: everything that loads it would load Qwen3-VL-4B-Thinking
in the same way. Its byte-level BPE can spell any text; the words, tool-call pieces and round coordinates
of its world are single tokens, which keeps responses near 16 tokens. The text agent's tokenizer has learned
from pages of its world, whose attributes are single tokens.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2VLImageProcessorPil,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
)

from minirl.agents.openwebrl import SCALE, TOOLS, system_prompt

SPECIAL = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>",
    "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>",
)  # fmt: skip
MARKUP = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")

# ChatML as Qwen3-VL-Thinking's template writes it: the assistant's turn opens inside <think>
CHAT_TEMPLATE = """\
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{% if message.content is string %}{{ message.content }}{% else -%}
{%- for part in message.content -%}
{%- if part.type == 'image' -%}<|vision_start|><|image_pad|><|vision_end|>
{%- else -%}{{ part.text }}{%- endif -%}
{%- endfor -%}
{%- endif %}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt %}<|im_start|>assistant
<think>
{% endif -%}"""

# Words of plain text stand alone, so that they are the same tokens wherever they occur; anything else is
# cut at blanks only, so that a stretch of JSON or markup becomes one token.
CHUNKS = r" ?\p{L}+(?=[\s,.]|$)| ?\d+|\n| ?[^\s\d]+(?:\d[^\s\d]+)*|\s+"


# The text agent's: attributes whose values nobody needs to read stay whole, words and numbers stand alone.
HTML_CHUNKS = (
    r""" (?:data-bbox|type)="[^"]*">?| ?do\([^)\d]*element="| ?</?[a-z][a-z0-9]*>?| [a-z-]+="| ?\p{L}+"""
    r"""| ?\d|\n|">?|"\)|[^\s\p{L}\d]+|\s+"""
)
TEXT_TEMPLATE = CHAT_TEMPLATE.replace("<|im_start|>assistant\n<think>\n", "<|im_start|>assistant\n")
TEXT_MARKUP = ("<think>", "</think>", "<answer>", "</answer>")

# The judge's: a word is one token whether a blank, a quotation mark or an address stands before it, so that
# what the task asks for and what a page reports can be compared.
JUDGE_CHUNKS = r"\p{L}+|\d+|\n|[^\p{L}\d\n]+"


def corpus(words: Iterable[str], url: str) -> list[str]:
    """Texts of the form that the tiny agent reads and writes, for the tokenizer to learn its tokens from."""
    tens = "".join(f"[{n}, {n}]" for n in range(0, SCALE + 1, 10))
    texts = [system_prompt(brief=True), tens]
    for word in words:
        texts += [f"{word} {word}, {word}.", f'clicked button "{word}" at [500, 500].']
    for page in ("Home", "Category", "Product", "Checkout", "Done"):
        texts.append(
            "<user_request>\n</user_request>\n\n<observation>\nscreen size: 480 x 360\nCurrent tab: 0\n"
            f"Available tabs:\n- Tab 0 (active): {url}#{page.upper()} - {page}\nscreenshot:\n</observation>\n"
            f'click: clicked button "{page}" at [500, 500]. Now at {url}#{page.upper()}.'
        )
    for label in ("Continue", "Place order", "Back"):
        texts.append(f'clicked button "{label}" at [500, 500].')
    for name, tool in TOOLS.items():
        arguments = {
            a: [0, 0] if kind == "point" else default for a, (kind, default) in tool.arguments.items()
        }
        texts.append(json.dumps({"name": name, "arguments": arguments}, default=str))
    return texts


def build_tokenizer(
    texts: Iterable[str],
    vocabulary: int,
    chunks: str = CHUNKS,
    markup: Iterable[str] = MARKUP,
    template: str = CHAT_TEMPLATE,
) -> PreTrainedTokenizerFast:
    """A byte-level BPE over `texts`, with Qwen's control tokens."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(chunks), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(texts, trainer)
    bpe.add_tokens([AddedToken(token, special=False, normalized=False) for token in markup])
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=list(SPECIAL[1:]),
        chat_template=template,
        clean_up_tokenization_spaces=False,
    )


def build(path: Path, texts: Iterable[str], seed: int, hidden: int = 128, layers: int = 4) -> Path:
    """Writes the checkpoint folder with random weights; the same seed gives the same weights."""
    return _build_visual(path, build_tokenizer(texts, vocabulary=1024), seed, hidden, layers)


def build_judge(path: Path, texts: Iterable[str], seed: int, hidden: int = 128, layers: int = 4) -> Path:
    """The same for a judge, which reads questions and writes reasons, and thinks nothing apart from them."""
    tokenizer = build_tokenizer(texts, 1024, JUDGE_CHUNKS, (), TEXT_TEMPLATE)
    return _build_visual(path, tokenizer, seed, hidden, layers)


def _build_visual(
    path: Path, tokenizer: PreTrainedTokenizerFast, seed: int, hidden: int, layers: int
) -> Path:
    ids = {token: tokenizer.convert_tokens_to_ids(token) for token in SPECIAL}
    config = Qwen3VLConfig(
        text_config={
            "vocab_size": len(tokenizer),
            "hidden_size": hidden,
            "intermediate_size": 3 * hidden,
            "num_hidden_layers": layers,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "max_position_embeddings": 4096,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "mrope_section": [6, 5, 5],
                "mrope_interleaved": True,  # as transformers takes for granted and vLLM does not
            },
            "eos_token_id": ids["<|im_end|>"],
            "pad_token_id": ids["<|endoftext|>"],
            "tie_word_embeddings": True,
        },
        vision_config={
            "depth": 2,
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_heads": 2,
            "out_hidden_size": hidden,
            "num_position_embeddings": 64,
            "deepstack_visual_indexes": [0],
        },
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        tie_word_embeddings=True,
    )
    # The default of 0.02 suits widths in the thousands; at this one attention would hardly mix anything
    # at first, and copying a word from the task into a click was not learned within 200 updates.
    for part in (config, config.text_config, config.vision_config):
        part.initializer_range = 0.1
    torch.manual_seed(seed)
    return _saved(path, Qwen3VLForConditionalGeneration(config), tokenizer)


def build_text(path: Path, texts: Iterable[str], seed: int, hidden: int = 128, layers: int = 3) -> Path:
    """The same for the text agent: a Llama. (transformers would replace a Qwen2.5's tokenizer by its own.)"""
    tokenizer = build_tokenizer(texts, 2048, HTML_CHUNKS, TEXT_MARKUP, TEXT_TEMPLATE)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        eos_token_id=tokenizer.convert_tokens_to_ids("<|im_end|>"),
        pad_token_id=tokenizer.convert_tokens_to_ids("<|endoftext|>"),
        tie_word_embeddings=True,
        initializer_range=0.1,  # see `build`
    )
    torch.manual_seed(seed)
    return _saved(path, LlamaForCausalLM(config), tokenizer)


def _saved(path: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> Path:
    part = path.with_name(path.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    model.save_pretrained(part)
    tokenizer.save_pretrained(part)
    if isinstance(model, Qwen3VLForConditionalGeneration):
        save_processor(part)
    shutil.rmtree(path, ignore_errors=True)
    part.rename(path)
    return path


def save_processor(path: Path) -> None:
    """The files that make AutoProcessor and vLLM treat the folder as a Qwen3-VL."""
    images = Qwen2VLImageProcessorPil(
        patch_size=16,
        merge_size=2,
        temporal_patch_size=2,
        size={"shortest_edge": 32 * 32, "longest_edge": 1280 * 1280},
        image_mean=[0.5, 0.5, 0.5],
        image_std=[0.5, 0.5, 0.5],
    )
    images.save_pretrained(path)
    settings_path = path / "preprocessor_config.json"
    settings = json.loads(settings_path.read_text())
    settings |= {"processor_class": "Qwen3VLProcessor", "image_processor_type": "Qwen2VLImageProcessorFast"}
    settings_path.write_text(json.dumps(settings, indent=2))
    video = settings | {"video_processor_type": "Qwen3VLVideoProcessor"}
    (path / "video_preprocessor_config.json").write_text(json.dumps(video, indent=2))
