"""Gated delta layers in a prefix tree compute what one row per turn does, up to their kernel's rounding."""

import copy
import sys
from dataclasses import replace
from functools import partial
from itertools import pairwise

import pytest
import torch
import transformers
from test_prefix_tree import Album, computed, conversation, forest_of, one_by_one, packed
from training import CPU, TEXT_SIZES
from transformers.models.qwen3_5 import modeling_qwen3_5 as qwen3_5

from minirl import prefix_tree, tree_recurrence
from minirl.config import ModelConfig
from minirl.model import QuickLinear, load_model, load_preprocessor
from minirl.policy import Policy
from minirl.rows import collate
from minirl.tree_attention import Chain, Tree
from minirl.tree_recurrence import Segment, cut, tree_rule, with_context

DELTA_SIZES = {"num_key_heads": 2, "num_value_heads": 4, "key_head_dim": 16, "value_head_dim": 16}

# a trunk of six, two tokens behind its second, one behind its fourth
TREE = (Chain(0, 6), Chain(6, 8, ((0, 2),)), Chain(8, 9, ((0, 4),)))


def test_chains_are_cut_where_others_leave_them():
    assert cut(TREE) == (
        Segment(0, 2, -1, 0),
        Segment(2, 4, 0, 1),
        Segment(4, 6, 1, 2),
        Segment(6, 8, 0, 1),
        Segment(8, 9, 1, 2),
    )


def test_a_token_is_convolved_with_what_came_before_it_in_its_own_sequence():
    places, kept = with_context(TREE, 3)
    row = ["abcdefxyz-"[place] for place in places]
    assert "".join(row) == "---ab-abcdbcdef-abxybcdz"
    assert [row[place] for place in kept] == list("abcdefxyz")


@pytest.fixture(scope="module")
def loaded(hybrid_folder):
    config = ModelConfig(path=str(hybrid_folder))
    return load_model(config).train(), load_preprocessor(config)


@pytest.fixture
def seeing(loaded, png):
    """The tiny Qwen3.5 with the tree switched on, rows of a trajectory, and where their images are. Its
    states last for longer than random ones, which are gone after a few tokens."""
    model, preprocessor = copy.deepcopy(loaded[0]), loaded[1]
    for name, weight in model.named_parameters():
        if name.endswith(".A_log"):
            weight.data -= 3
    prefix_tree.enable(model)
    album = Album()
    return model, preprocessor, partial(conversation, preprocessor, album, png, 0, 1), album


def modeling(model) -> object:
    """The module of transformers whose functions the gated delta layers call."""
    layer = next(part for name, part in model.named_modules() if name.endswith(".linear_attn"))
    return sys.modules[type(layer).__module__]


def exactly(model, batches) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """As `computed`, by plain PyTorch, in the type of the model."""
    model.zero_grad()
    out = []
    for batch in batches:
        inputs = batch.inputs | {"pixel_values": batch.inputs["pixel_values"].to(model.dtype)}
        hidden_BLH = model.model(**inputs, use_cache=False).last_hidden_state
        logits_NV = model.lm_head(hidden_BLH.flatten(0, 1)[batch.sources_N])
        logprobs_N = logits_NV.log_softmax(-1).gather(1, batch.targets_N[:, None])[:, 0]
        (logprobs_N * batch.advantage_N * batch.weight_N).sum().backward()
        out.append(logprobs_N.detach())
    return torch.cat(out), {n: p.grad.clone() for n, p in model.named_parameters()}


@pytest.fixture
def doubled(monkeypatch):
    """`doubled(model)`: a copy in float64, where transformers' layers compute in float64, too."""

    def double(model):
        model = copy.deepcopy(model).double()
        for part in model.modules():
            if isinstance(part, QuickLinear):
                part.__class__ = torch.nn.Linear
        monkeypatch.setattr(torch, "float32", torch.float64)
        monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
        return model

    return double


def apart(ours, oracle) -> tuple[float, float]:
    """The largest difference of log-probs, and that of all gradients as a share of them."""
    assert ours[1].keys() == oracle[1].keys()
    one, other = (torch.cat([grads[name].flatten() for name in oracle[1]]) for _, grads in (ours, oracle))
    return (ours[0] - oracle[0]).abs().max().item(), ((one - other).norm() / other.norm()).item()


@pytest.mark.parametrize("turns", [6, pytest.param(12, marks=pytest.mark.more)])
def test_a_trajectory_with_screenshots_equals_its_turns_one_by_one(seeing, doubled, monkeypatch, turns):
    """In float64 to 1e-12. In float32 log-probs differ by no more than twice what they do where the kernel
    cuts the very same turns into chunks of 16, 32 or 48 in place of 64, and gradients by 1e-5."""
    model, preprocessor, rows, images = seeing
    rows = rows(turns)
    turnwise = [collate([row], preprocessor, images, CPU) for row in rows]
    tree = prefix_tree.pack(rows, preprocessor, images, CPU)
    assert tree.inputs["input_ids"].numel() < 0.4 * sum(len(row.ids) for row in rows), "nothing was shared"
    oracle = computed(model, preprocessor, turnwise)
    assert len(oracle[1]) == len(list(model.parameters())), "a parameter without a gradient is not tested"
    logprobs, gradients = apart(computed(model, preprocessor, [tree]), oracle)

    module = modeling(model)
    floors = []
    for size in (16, 32, 48):
        with monkeypatch.context() as other, torch.no_grad():
            rule = partial(module.torch_chunk_gated_delta_rule, chunk_size=size)
            other.setattr(module, "torch_chunk_gated_delta_rule", rule)
            policy = Policy(model, preprocessor, temperature=0.8)
            again = [policy(batch.inputs, batch.sources_N, batch.targets_N)[0] for batch in turnwise]
        floors.append((torch.cat(again) - oracle[0]).abs().max().item())
    assert logprobs <= 2 * max(floors) < 1e-4
    assert gradients < 1e-5

    model = doubled(model)
    assert max(apart(exactly(model, [tree]), exactly(model, turnwise))) < 1e-12


@pytest.mark.parametrize("wrong", ["no state", "row neighbours"])
def test_a_wrong_recurrence_is_noticed(seeing, monkeypatch, wrong):
    """The controls: every segment starts from nothing, and is convolved with what stands before it."""
    model, preprocessor, rows, images = seeing
    rows = rows(6)
    oracle = one_by_one(model, preprocessor, rows, images)
    module = modeling(model)
    if wrong == "no state":
        tree_rule = module.torch_chunk_gated_delta_rule
        forgetful = lambda *args, initial_state, **kwargs: tree_rule.args[0](*args, **kwargs)  # noqa: E731
        monkeypatch.setattr(module, "torch_chunk_gated_delta_rule", partial(tree_rule.func, forgetful))
    else:
        plain = lambda convolve, *args, tree, **kwargs: convolve(*args, **kwargs)  # noqa: E731
        monkeypatch.setattr(module, "causal_conv1d_fn", partial(plain, module.causal_conv1d_fn.args[0]))
    logprobs, gradients = apart(packed(model, preprocessor, rows, images), oracle)
    assert logprobs > 1e-2 and gradients > 1e-2


def test_gradient_checkpointing_changes_nothing(seeing):
    model, preprocessor, rows, images = seeing
    batch = prefix_tree.pack(rows(6), preprocessor, images, CPU)
    plain = computed(model, preprocessor, [batch])
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    assert max(apart(computed(model, preprocessor, [batch]), plain)) < 1e-6


def test_padding_behind_a_turn_changes_nothing(seeing):
    """The model that trains on trees also scores padded rows, without one."""
    model, preprocessor, rows, images = seeing
    together = computed(model, preprocessor, [collate(rows(4), preprocessor, images, CPU)])
    logprobs, gradients = apart(together, one_by_one(model, preprocessor, rows(4), images))
    assert logprobs < 1e-4 and gradients < 1e-5


def inputs_of(
    tree: Tree, heads: int = 2, size: int = 8
) -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
    """Queries, keys and values, and the log decays and betas of a row."""
    torch.manual_seed(0)
    L = tree[-1].end
    qkv = [torch.randn(1, L, heads, size, requires_grad=True) for _ in range(3)]
    decay = -torch.rand(1, L, heads).requires_grad_()
    return qkv, {"g": decay, "beta": torch.rand(1, L, heads, requires_grad=True)}


def test_a_kernel_that_knows_lengths_is_called_once_a_level(monkeypatch):
    """What flash-linear-attention's kernel computes: sequences behind each other in one row, each from its
    own first state. It is asked on a GPU only."""
    tree = forest_of([(10, 7), (20, 70), (20, 9)])
    rule = qwen3_5.torch_chunk_gated_delta_rule
    calls = []

    def kernel(q, k, v, g, beta, initial_state, output_final_state, cu_seqlens, use_qk_l2norm_in_kernel):
        calls.append(cu_seqlens.diff().tolist())
        options = {
            "output_final_state": output_final_state,
            "use_qk_l2norm_in_kernel": use_qk_l2norm_in_kernel,
        }
        outputs, states = [], []
        for n, (start, end) in enumerate(pairwise(cu_seqlens.tolist())):
            own = [x[:, start:end] for x in (q, k, v)]
            gates = {"g": g[:, start:end], "beta": beta[:, start:end]}
            output, state = rule(*own, **gates, initial_state=initial_state[n : n + 1], **options)
            outputs.append(output)
            states.append(state)
        return torch.cat(outputs, 1), torch.cat(states)

    def run(rule) -> list[torch.Tensor]:
        qkv, gates = inputs_of(tree)
        given = {"initial_state": None, "output_final_state": False, "cu_seqlens": None}
        out, _ = tree_rule(rule, *qkv, **gates, tree=tree, use_qk_l2norm_in_kernel=True, **given)
        return [out, *torch.autograd.grad(out.square().sum(), [*qkv, *gates.values()])]

    oracle = run(rule)
    monkeypatch.setattr(tree_recurrence, "is_flash_linear_attention_available", lambda: True)
    assert all(map(torch.equal, run(rule), oracle)), "the CPU has no such kernel"
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    for ours, theirs in zip(run(kernel), oracle, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    assert calls == [[10], [10, 7], [20, 70, 9, 3]]


@pytest.mark.parametrize("kind", ["Qwen3_5Text", "Qwen3Next", "Qwen3_5MoeText"])
def test_other_hybrid_models(preprocessor, png, kind):
    """Of text. Qwen3-Next projects in another order; it and the last choose experts."""
    torch.manual_seed(0)
    delta = {f"linear_{name}": size for name, size in DELTA_SIZES.items()}
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
    experts |= {"shared_expert_intermediate_size": 16}
    more = {} if kind == "Qwen3_5Text" else experts
    sizes = TEXT_SIZES | delta | more | {"head_dim": 16, "num_hidden_layers": 4}
    config = getattr(transformers, f"{kind}Config")(vocab_size=len(preprocessor.tokenizer), **sizes)
    model = getattr(transformers, f"{kind.removesuffix('Text')}ForCausalLM")(config).train()
    prefix_tree.enable(model)
    prefix_tree.enable(model)  # where there is a second model of the kind
    reads = replace(preprocessor, images=None)
    rows = conversation(reads, Album(), png, 0, 1, turns=6)
    logprobs, gradients = apart(packed(model, reads, rows, {}), one_by_one(model, reads, rows, {}))
    assert logprobs < 1e-4 and gradients < 1e-4


def test_layers_that_are_not_known_are_refused():
    kinds = ["linear_attention", "full_attention"]
    config = transformers.OlmoHybridConfig(vocab_size=50, **TEXT_SIZES, layer_types=kinds, pad_token_id=0)
    with pytest.raises(ValueError, match="--batch.layout per-turn"):
        prefix_tree.enable(transformers.OlmoHybridForCausalLM(config))
