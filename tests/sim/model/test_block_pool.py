"""The blocks of a model engine that are free, and what the prefix cache knows of them."""

from sloserve.sim.model.block_pool import BlockPool


def test_a_block_that_gets_an_equal_content_again_has_changed() -> None:
    """A copy that reads the block must know that a request writes it again."""
    pool = BlockPool(1)
    (block,) = pool.take(1)
    pool.remember(block, "content")
    before = pool.changes_of(block)
    pool.give_back([block])
    pool.touch([block])
    assert pool.changes_of(block) == before
    pool.give_back([block])
    pool.remember(*pool.take(1), "content")
    assert pool.node_of(block) == "content" and pool.changes_of(block) > before
    before = pool.changes_of(block)
    pool.forget_all()
    assert pool.changes_of(block) > before
