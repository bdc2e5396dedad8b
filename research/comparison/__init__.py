"""Which mechanism for how many queries: every option on the same records, at the same budget, by public rules."""
