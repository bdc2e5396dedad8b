"""Which mechanism to take for a budget: the options of `dpserve train`, set by public rules, and what they reach."""
