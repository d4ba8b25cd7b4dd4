"""The prefix tree computes what one row per turn computes: log-probs and every gradient, to 1e-5."""

import copy
import random
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256

import numpy as np
import pytest
import torch
import transformers
from training import CPU, TEXT_SIZES, qwen2_5_vl

from minirl import prefix_tree, tree_attention
from minirl.agents.openwebrl import OpenWebRLAgent
from minirl.config import AgentConfig
from minirl.context import Context
from minirl.model import Preprocessor
from minirl.policy import Policy
from minirl.prefix_tree import Forest
from minirl.rows import Row, collate
from minirl.tree_attention import Chain, JoinedAttention, Tree, segment_attention
from minirl.types import Observation


def lay_out(*sequences: str) -> tuple[Forest, list[list[int]]]:
    forest = Forest()
    return forest, [forest.add(np.array([ord(c) for c in s])).tolist() for s in sequences]


def test_equal_beginnings_are_laid_out_once():
    forest, places = lay_out("abcd", "abx", "q", "abcdef", "abxy", "ab")
    assert forest.chains == [
        Chain(0, 4),
        Chain(4, 5, ((0, 2),)),
        Chain(5, 6),
        Chain(6, 8, ((0, 4),)),
        Chain(8, 9, ((0, 2), (4, 5))),
    ]
    assert places == [[0, 1, 2, 3], [0, 1, 4], [5], [0, 1, 2, 3, 6, 7], [0, 1, 4, 8], [0, 1]]


def test_touching_ranges_are_one():
    """ "abcdef" goes on where "abcd" ends in the row, so its prefix is one piece for what comes after."""
    assert lay_out("abcd", "abcdef", "abcdez")[0].chains[2] == Chain(6, 7, ((0, 5),))


@pytest.mark.parametrize("seed", range(8))
def test_any_sequences_are_found_again(seed):
    """Every sequence reads back from its places; a chain's prefix and itself are its sequence's beginning;
    and the tree has as many tokens as there are distinct prefixes."""
    rng = random.Random(seed)
    sequences = ["".join(rng.choices("ab", k=rng.randint(1, 8))) for _ in range(12)]
    forest = Forest()
    row: dict[int, str] = {}
    for s in sequences:
        keys = np.array([ord(c) for c in s])
        places = forest.add(keys)
        assert "".join(row.setdefault(int(p), c) for p, c in zip(places, s, strict=True)) == s
    assert forest.size == len({s[: i + 1] for s in sequences for i in range(len(s))})
    for chain in forest.chains:
        seen = "".join(row[i] for start, end in chain.visible for i in range(start, end))
        assert any(s.startswith(seen) for s in sequences)


class Album(dict):
    """Screenshots by content."""

    def put(self, png: bytes) -> str:
        name = sha256(png).hexdigest()[:16]
        self[name] = png
        return name


def conversation(
    preprocessor: Preprocessor, album: Album, png: Callable, seed: int, keep: int, turns: int = 4
) -> list[Row]:
    """A trajectory's rows, through the real Context; screenshots come in pairs of one size."""
    rng = random.Random(seed)
    config = AgentConfig(brief=True, screenshots=keep)
    context = Context(preprocessor, OpenWebRLAgent(config), config, "Order two mugs.")
    rows, feedback = [], ()
    for t in range(turns):
        picture = png(64 + 32 * (t // 2 % 2), 64, seed=100 * seed + t) if preprocessor.images else None
        prompt = context.observe(Observation(f"tab {t} {seed}", image=picture), feedback)
        response = tuple(rng.randrange(40, 300) for _ in range(rng.randint(2, 7)))
        context.respond(response)
        feedback = (f"click: {rng.randrange(100)}",)
        images = tuple(album.put(p) for p in prompt.images)
        old = tuple(-rng.random() for _ in response)
        weights = (rng.random() / len(response),) * len(response)
        advantage = rng.gauss(0, 1)
        ids = prompt.ids + response
        rows.append(Row(ids, len(prompt.ids), images, old, advantage, prompt.shared, weights))
    return rows


def computed(model, preprocessor, batches) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Log-probs in the order of the rows' response tokens, and all gradients of a weighted sum of them."""
    model.zero_grad()
    policy = Policy(model, preprocessor, temperature=0.8)
    out = []
    for batch in batches:
        logprobs_N, _ = policy(batch.inputs, batch.sources_N, batch.targets_N)
        (logprobs_N * batch.advantage_N * batch.weight_N).sum().backward()
        out.append(logprobs_N.detach())
    return torch.cat(out), {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def assert_equal(ours, oracle) -> None:
    torch.testing.assert_close(ours[0], oracle[0], rtol=1e-5, atol=1e-5)
    assert ours[1].keys() == oracle[1].keys()
    scale = max(g.abs().max() for g in oracle[1].values())
    for name, grad in oracle[1].items():
        error = (ours[1][name] - grad).abs().max()
        assert error <= 1e-5 * max(grad.abs().max(), 1e-2 * scale), name


def one_by_one(model, preprocessor, rows, images):
    """The oracle: one row per turn."""
    return computed(model, preprocessor, [collate([row], preprocessor, images, CPU) for row in rows])


def packed(model, preprocessor, rows, images):
    """The same, as a prefix tree."""
    return computed(model, preprocessor, [prefix_tree.pack(rows, preprocessor, images, CPU)])


@pytest.fixture
def seeing(model, preprocessor, png):
    """The tiny Qwen3-VL with the tree switched on, rows of a group of three, and where their images are."""
    model = copy.deepcopy(model).train()
    prefix_tree.enable(model)
    album = Album()

    def rows(keep: int = 1) -> list[Row]:
        members = [conversation(preprocessor, album, png, seed, keep) for seed in range(3)]
        return sum(members, [])

    return model, preprocessor, rows, album


@pytest.mark.parametrize(
    ("kernel", "keep"), [(JoinedAttention.apply, 1), (JoinedAttention.apply, 2), (segment_attention, 1)]
)
def test_a_group_with_screenshots_equals_its_turns_one_by_one(seeing, monkeypatch, kernel, keep):
    model, preprocessor, rows, images = seeing
    used: list[int] = []
    watch = lambda *given: used.append(1) or kernel(*given)  # noqa: E731
    monkeypatch.setattr(JoinedAttention, "apply", watch)  # which a CPU takes
    rows = rows(keep)
    oracle = one_by_one(model, preprocessor, rows, images)
    assert not used, "without a tree it is plain SDPA"
    batch = prefix_tree.pack(rows, preprocessor, images, CPU)
    assert batch.inputs["input_ids"].numel() < 0.75 * sum(len(row.ids) for row in rows), "nothing was shared"
    assert len(oracle[1]) == len(list(model.parameters())), "a parameter without a gradient is not tested"
    assert_equal(computed(model, preprocessor, [batch]), oracle)
    assert used


def test_a_split_trajectory_equals_the_whole(seeing):
    model, preprocessor, rows, images = seeing
    rows = sorted(rows(), key=lambda row: row.ids)
    parts = list(prefix_tree.micro_batches(rows, 330, preprocessor.pad, 330))
    assert len(parts) > 2 and [row for part in parts for row in part.rows] == rows
    batches = [prefix_tree.pack(part.rows, preprocessor, images, CPU) for part in parts]
    assert [batch.inputs["input_ids"].numel() for batch in batches] == [part.tokens for part in parts]
    assert all(batch.inputs["input_ids"].numel() <= 330 for batch in batches)
    assert_equal(computed(model, preprocessor, batches), packed(model, preprocessor, rows, images))


def test_gradient_checkpointing_changes_nothing(seeing):
    model, preprocessor, rows, images = seeing
    batch = prefix_tree.pack(rows(), preprocessor, images, CPU)
    calls = []
    model.model.language_model.layers[0].self_attn.register_forward_pre_hook(lambda *_: calls.append(1))
    plain = computed(model, preprocessor, [batch])
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    assert len(calls) == 1
    assert_equal(computed(model, preprocessor, [batch]), plain)
    assert len(calls) == 3, "nothing was computed again"


def test_a_wrong_tree_is_noticed(seeing):
    """The controls: everything visible to everything before it, row positions, two screenshots swapped."""
    model, preprocessor, rows, images = seeing
    rows = rows()
    oracle = one_by_one(model, preprocessor, rows, images)
    batch = prefix_tree.pack(rows, preprocessor, images, CPU)
    length = batch.inputs["input_ids"].numel()
    pixels = batch.inputs["pixel_values"]
    grids = batch.inputs["image_grid_thw"]
    n = int(grids[0].prod())
    assert grids[0].tolist() == grids[1].tolist()
    changes = {
        "tree": (Chain(0, length),),
        "position_ids": torch.arange(length).expand(3, 1, -1),
        "pixel_values": torch.cat([pixels[n : 2 * n], pixels[:n], pixels[2 * n :]]),
    }
    for name, wrong in changes.items():
        other = replace(batch, inputs=batch.inputs | {name: wrong})
        with pytest.raises(AssertionError):
            assert_equal(computed(model, preprocessor, [other]), oracle)


def test_equal_screenshots_are_seen_once_and_different_ones_apart(seeing, png):
    model, preprocessor, _, _ = seeing
    album = Album()
    one, two = album.put(png(64, 64, seed=1)), album.put(png(64, 64, seed=2))
    pads = (preprocessor.pad,) * preprocessor.image_tokens(album[one])
    ids = (50, *pads, 60, 70)
    rows = [Row(ids, len(ids) - 1, (name,), (0.0,), 1.0, weights=(1.0,)) for name in (one, one, two)]
    batch = prefix_tree.pack(rows, preprocessor, album, CPU)
    assert len(batch.inputs["image_grid_thw"]) == 2
    assert batch.inputs["input_ids"].numel() == 1 + 2 * (len(pads) + 2)


@pytest.mark.parametrize("kind", ["Llama", "Qwen2", "Qwen3", "VL"])
def test_other_models(preprocessor, png, kind):
    """With grouped heads, where pages and responses are text; and Qwen2.5-VL: another vision tower (windows,
    no deepstack), and no norms on queries and keys."""
    torch.manual_seed(0)
    if kind == "VL":
        model, sees = qwen2_5_vl(preprocessor).train(), preprocessor
        model.set_attn_implementation("sdpa")
    else:
        config = getattr(transformers, f"{kind}Config")(vocab_size=len(preprocessor.tokenizer), **TEXT_SIZES)
        model = getattr(transformers, f"{kind}ForCausalLM")(config).train()
        sees = replace(preprocessor, images=None)
    prefix_tree.enable(model)
    album = Album()
    rows = sum((conversation(sees, album, png, seed, keep=2) for seed in range(2)), [])
    oracle = one_by_one(model, sees, rows, album)
    assert len(oracle[1]) == len(list(model.parameters()))
    assert_equal(packed(model, sees, rows, album), oracle)


def forest_of(lengths: list[tuple[int, int]]) -> Tree:
    """A prefix and branches off it: (place on the prefix, length)."""
    size, chains = 40, [Chain(0, 40)]
    for place, length in lengths:
        chains.append(Chain(size, size + length, ((0, place),)))
        size += length
    chains.append(Chain(size, size + 3, ((0, 10), (chains[1].start, chains[1].end))))  # a branch of a branch
    return tuple(chains)


def flash(q, k, v, dropout=0.0, causal=False, debug=False, *, scale=None):
    """What CUDA's kernel computes, of a group's heads together; it aligns a causal mask at the end."""
    shared = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(shared, 1) for x in (k, v))
    scores = (q @ k.mT * scale).float()
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[2:]).triu(1 + k.shape[2] - q.shape[2]) > 0, -1e30)
    sums, none = scores.logsumexp(-1), torch.empty(0)
    out = (scores - sums[..., None]).exp().to(q.dtype) @ v
    return out, sums, none, none, q.shape[2], k.shape[2], torch.zeros(2, dtype=torch.uint64), none, none


def flash_backward(grad, q, k, v, out, sums, cum_q, cum_k, max_q, max_k, dropout, causal, *rng, scale=None):
    assert sums.is_contiguous(), "the kernel does not look at its strides"
    assert (cum_q, cum_k, max_q, max_k, dropout) == (None, None, q.shape[2], k.shape[2], 0.0)
    heads, shared = k.shape[1], q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(shared, 1) for x in (k, v))
    p = (q @ k.mT * scale - sums[..., None]).exp()
    p = p.tril(k.shape[2] - q.shape[2]) if causal else p
    ds = p * (grad @ v.mT - (grad * out).sum(-1, keepdim=True)) * scale
    dk, dv = (x.unflatten(1, (heads, shared)).sum(2) for x in (ds.mT @ q, p.mT @ grad))
    return ds @ k, dk, dv


@pytest.fixture(params=["cpu", "cuda"])
def device(request, monkeypatch):
    """A CPU, and CUDA's operators as it would call them: their own signatures, computed by hand."""
    if request.param == "cpu":
        yield
        return
    with torch.library._scoped_library("aten", "IMPL") as library:
        library.impl("_scaled_dot_product_flash_attention", flash, "CPU")
        library.impl("_scaled_dot_product_flash_attention_backward", flash_backward, "CPU")
        monkeypatch.setattr(torch.Tensor, "is_cuda", True)
        yield


@pytest.mark.parametrize("heads", [(4, 2), (4, 4), (4, 1)])
def test_both_kernels_agree(heads, device):
    """Outputs and gradients; and the control, that a tree matters."""
    torch.manual_seed(0)
    tree = forest_of([(10, 7), (25, 9), (40, 1)])
    inputs = [torch.randn(1, n, tree[-1].end, 16) for n in (heads[0], heads[1], heads[1])]
    grad = torch.randn(1, heads[0], tree[-1].end, 16)

    def computed(function, tree: Tree) -> list[torch.Tensor]:
        q, k, v = (x.clone().requires_grad_() for x in inputs)
        out = function(q, k, v, tree, 0.3)
        out.backward(grad)
        return [out.detach(), q.grad, k.grad, v.grad]

    joined = computed(JoinedAttention.apply, tree)
    for ours, theirs in zip(joined, computed(segment_attention, tree), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    assert (computed(segment_attention, (Chain(0, tree[-1].end),))[0] - joined[0]).abs().max() > 0.1


def test_a_gpu_joins_what_its_flash_kernel_takes(seeing, monkeypatch):
    known, used = tree_attention.AttentionInterface._global_mapping["tree"], []
    for name in ("JoinedAttention.apply", "segment_attention"):
        note = lambda q, *_, name=name: used.append(name) or q  # noqa: E731
        monkeypatch.setattr(f"minirl.tree_attention.{name}", note)
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    for dtype in (torch.bfloat16, torch.float32):
        q, k = (torch.randn(1, heads, 6, 16, dtype=dtype) for heads in (4, 2))
        known(None, q, k, k, None, tree=(Chain(0, 6),))
    assert used == ["JoinedAttention.apply", "segment_attention"]


def test_no_square_mask_is_made(seeing, monkeypatch):
    """transformers makes one of jumping positions unless it is told that nothing is padding."""
    model, preprocessor, rows, images = seeing
    batch = prefix_tree.pack(rows(), preprocessor, images, CPU)
    masks, known = [], tree_attention.AttentionInterface._global_mapping
    attend = known["tree"]
    watch = lambda *args, **kwargs: masks.append(args[4]) or attend(*args, **kwargs)  # noqa: E731
    monkeypatch.setitem(known, "tree", watch)
    Policy(model, preprocessor, 1.0)(batch.inputs, batch.sources_N, batch.targets_N)
    assert masks == [None] * model.config.get_text_config().num_hidden_layers


def test_without_a_tree_padding_is_masked_as_before(seeing):
    """The model that trains on trees also samples: padded rows must not see their padding."""
    model, preprocessor, rows, images = seeing
    rows = rows()
    together = computed(model, preprocessor, [collate(rows, preprocessor, images, CPU)])
    assert_equal(together, one_by_one(model, preprocessor, rows, images))


def test_layers_that_a_tree_would_be_wrong_for_are_refused():
    config = transformers.MistralConfig(vocab_size=50, **TEXT_SIZES, sliding_window=8)
    with pytest.raises(ValueError, match="--batch.layout per-turn"):
        prefix_tree.enable(transformers.MistralForCausalLM(config))


def test_a_row_budget_below_one_turn_is_refused(seeing):
    _, preprocessor, rows, _ = seeing
    with pytest.raises(ValueError, match="--batch.micro-tokens 50 is less than one turn's"):
        list(prefix_tree.micro_batches(rows(), 50, preprocessor.pad, 50))


def test_a_trunks_gradients_are_as_exact_however_many_chains_see_it():
    """In bfloat16, beside float32: sums in bfloat16 would be off by 0.5% for 5 chains and 1.5% for 150."""

    def error(chains: int) -> float:
        torch.manual_seed(0)
        own = [Chain(64 + 8 * n, 72 + 8 * n, ((0, 64),)) for n in range(chains)]
        tree = (Chain(0, 64), *own)
        q, k, v, grad = (torch.randn(1, heads, tree[-1].end, 16).bfloat16() for heads in (4, 2, 2, 4))

        def prefix(dtype: torch.dtype) -> torch.Tensor:
            inputs = [x.to(dtype).requires_grad_() for x in (q, k, v)]
            found = torch.autograd.grad(JoinedAttention.apply(*inputs, tree, None), inputs, grad.to(dtype))
            assert [x.dtype for x in found] == [dtype] * 3
            return torch.stack([x[:, :, :64].float() for x in found[1:]])

        exact = prefix(torch.float32)
        return ((prefix(torch.bfloat16) - exact).norm() / exact.norm()).item()

    few, many = error(5), error(150)
    assert few < 0.0045 and many < 1.1 * few
