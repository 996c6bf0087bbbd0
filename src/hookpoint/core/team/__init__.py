"""Multiple ranks that train one model together."""
