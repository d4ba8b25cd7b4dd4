"""The base models that the package ships: how a run starts from one, and what its tokenizer knows."""

import re

import pytest
from transformers import AutoTokenizer

from minirl import recipes
from minirl.tiny import checkpoints as tiny
from minirl.worlds.shop import CHOICES, SHOP, make_shop, make_tasks


def pieces(tokenizer, text: str) -> list[str]:
    return [tokenizer.decode([i]) for i in tokenizer(text)["input_ids"]]


@pytest.mark.parametrize("kind", ["visual", "text"])
def test_a_run_begins_with_a_copy_of_the_base_model(kind, tmp_path, tiny_folder, monkeypatch):
    monkeypatch.setattr(tiny, "BASE" if kind == "visual" else "BASE_TEXT", tiny_folder)
    (tmp_path / "model").mkdir()  # left by a run that was interrupted
    path = tiny.build_tiny(tmp_path / "model", recipes.tiny() if kind == "visual" else recipes.tiny_text())
    assert path == tmp_path / "model"
    copied, base = ({file.name: file.read_bytes() for file in at.iterdir()} for at in (path, tiny_folder))
    assert copied == base and "model.safetensors" in base


def test_all_that_any_shop_says_is_known_in_single_tokens():
    """Words as an order and a thought say them, buttons as the feedback does, and every page's name."""
    own = AutoTokenizer.from_pretrained(tiny.BASE)
    words = [word for choice in CHOICES.values() for word in choice["words"]]
    buttons = list(SHOP["buttons"].values())
    for word in [*words, *map(str.lower, buttons)]:
        assert pieces(own, f"choose {word} 20") == ["choose", f" {word}", " 20"]
        assert pieces(own, f'on <button> type=button "{word}" at')[3] == f' "{word}"'
    for label in buttons:
        assert pieces(own, f'on <button> type=button "{label}" at')[3] == f' "{label}"'
    for n in range(60):
        for page in make_shop(n).fsm.pages:
            assert pieces(own, f"navigated to http://shop-7.test/#{page}.")[-2:] == ["7", f".test/#{page}."]
            assert len(pieces(own, f" - {page.capitalize().replace('_', ' ')}\n")) <= 4
        for task in make_tasks(make_shop(n), 2):
            assert all(re.fullmatch(r" ?[A-Za-z]+|[,.]", piece) for piece in pieces(own, task.instruction))
