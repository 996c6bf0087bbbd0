"""Multiple processes: their ranks, how they communicate, and the strategies that train one model on all of them."""
