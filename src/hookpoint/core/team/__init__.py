"""A team: multiple ranks that train one model together."""
