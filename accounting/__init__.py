"""The cost of privacy: privacy losses and their composition, conversions, budgets and the ledger.

Imports nothing else of this project.
"""
