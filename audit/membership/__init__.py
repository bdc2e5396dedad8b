"""Black-box membership-inference attacks on a served model: what its answers tell about who was trained on.

The attacker has API keys with budgets, data of the same distribution, and time.
"""
