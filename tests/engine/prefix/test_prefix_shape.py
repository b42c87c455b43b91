"""The shape of a tree as it is shown: the whole of a small one, a bounded part of a large one."""

from __future__ import annotations

import pytest

from engine.prefix.drawn import Drawn
from headrace.engine.prefix import inspection
from headrace.engine.prefix.inspection import NodeLook, shape


def grown(num_tails: int) -> Drawn:
    """Prompts that begin alike, and each with a tail of its own, the later ones used later."""
    drawn = Drawn(num_blocks=num_tails + 300)
    for number in range(num_tails):
        drawn.leave("abcd " + "".join(chr(0x4E00 + number) for _ in range(4)))
    return drawn


def test_a_small_tree_is_shown_whole() -> None:
    drawn = Drawn()
    drawn.leave("abcd efgh ij")
    drawn.leave("abcd efXX")
    held = drawn.share(drawn.match("abcd efgh"))
    look = shape(drawn.tree.store, 10)
    assert (look.num_nodes, look.num_tokens, look.num_salts) == (3, 14, 1)
    root, first, second = look.nodes
    assert root == NodeLook(None, "", 0, 4, 2, 1)
    assert {first, second} == {NodeLook(0, "", 4, 6, 0, 1), NodeLook(0, "", 4, 4, 0, 0)}
    drawn.manager.close(held)
    assert [node.num_holders for node in shape(drawn.tree.store, 10).nodes] == [0, 0, 0]


@pytest.mark.parametrize("windows", [(6,), (None, 6)])
def test_holders_are_seen_where_layers_have_windows(windows: tuple[int | None, ...]) -> None:
    drawn = Drawn(*windows)
    drawn.leave("abcd efgh ij")
    held = drawn.share(drawn.match("abcd efgh ijkl"))
    assert [node.num_holders for node in shape(drawn.tree.store, 10).nodes] == [1]
    drawn.manager.close(held)
    assert [node.num_holders for node in shape(drawn.tree.store, 10).nodes] == [0]


def test_parents_come_first_and_fewer_are_the_first_of_more() -> None:
    drawn = grown(40)
    whole = shape(drawn.tree.store, 1000)
    assert len(whole.nodes) == whole.num_nodes == drawn.tree.num_nodes == 41
    assert sum(node.num_tokens for node in whole.nodes) == whole.num_tokens == drawn.tree.num_tokens
    for number, node in enumerate(whole.nodes):
        assert node.parent is None or node.parent < number
        if node.parent is not None:
            parent = whole.nodes[node.parent]
            assert node.start == parent.start + parent.num_tokens
    for most in (1, 7, 40):
        assert shape(drawn.tree.store, most).nodes == whole.nodes[:most]


def test_a_wide_tree_is_compared_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspection, "MAX_COMPARED", 128)
    drawn = grown(300)
    look = shape(drawn.tree.store, 100_000)
    assert look.num_nodes == 301
    assert look.nodes[0].num_children == 300
    assert 5 < len(look.nodes) <= 128
    for salt in range(100):
        drawn.leave("mnop qrst", str(salt))
    many = shape(drawn.tree.store, 100_000)
    assert many.num_salts == 101
    assert 20 < len({node.salt for node in many.nodes}) < 101
    assert len(many.nodes) <= 128
