import re

import pytest

from hookpoint.core.text._lazy_pattern import lazy_pattern


def test_a_lazy_pattern_works_like_a_compiled_pattern():
    pattern = lazy_pattern(r"(?P<word>[a-z]+)\d", re.IGNORECASE)
    assert pattern.sub(r"\g<word>", "Ab1 c2") == "Ab c"
    assert [match["word"] for match in pattern.finditer("Ab1 c2")] == ["Ab", "c"]
    assert pattern.fullmatch("a") is None
    assert pattern.pattern == r"(?P<word>[a-z]+)\d"


def test_a_lazy_pattern_is_compiled_at_its_first_use():
    pattern = lazy_pattern("(")
    with pytest.raises(re.error):
        pattern.search("x")
