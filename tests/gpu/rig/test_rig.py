"""The tests of suite.py for pytest, one after the other in a worker's process."""
import pytest
import suite


@pytest.mark.parametrize("name", suite.TESTS)
def test(name):
    suite.run(name)
