"""Products with the same bits in any order, on any device, and the questions that noise and the ledger are keyed by."""
