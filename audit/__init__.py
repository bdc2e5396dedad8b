"""Attacks and audits. Reaches a running service only through a public client that it is given.

Every audit has the same four steps: observe scores in two worlds, with a record and without it; bound from below what
they tell (`estimators`, for `families` of trade-off functions); compare the bound with the claim;
make a `Report` of the verdict (`presentation` says it, `reports` shows it). `pieces` keeps scores on disk.

- `membership/`: who was trained on? `attack` is the whole of it: `plan`, ask an `endpoint` (`asking`; `in_process` for
  a bundle), check `charges`, train `shadow_models`, score (`scoring`), and compare with `claims` (`verdict`).
- `distinguishing/`: which of two neighbouring models answered? `mechanism` for a mechanism at its worst case, `service`
  for two running services and for a service's audit of itself, by the `likelihood` of answers; `neighbours` are models
  trained with a record and without it.
- `sampler`: does the sampler of all noise follow its laws?
"""
