"""A leaf: reads what a run left behind and writes one self-contained page. Nothing else in excise depends on it."""
