import re

import pytest

from hookpoint.core.text._lazy_pattern import lazy_pattern


def test_it_is_used_like_a_compiled_one():
    pattern = lazy_pattern(r"(?P<word>[a-z]+)\d", re.IGNORECASE)
    assert pattern.sub(r"\g<word>", "Ab1 c2") == "Ab c"
    assert [match["word"] for match in pattern.finditer("Ab1 c2")] == ["Ab", "c"]
    assert pattern.fullmatch("a") is None
    assert pattern.pattern == r"(?P<word>[a-z]+)\d"


def test_it_is_compiled_when_it_is_first_used():
    pattern = lazy_pattern("(")
    with pytest.raises(re.error):
        pattern.search("x")
