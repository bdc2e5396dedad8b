"""Nasr et al. 2023 on the data sets that are here: its Table 1, and its planted faults, beside ours."""
