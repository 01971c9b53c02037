"""sync_program."""

from nkijax.dialects.neuronxcc.iterators import sync_program


def test_it_is_a_block():
    with sync_program([0]):
        pass
