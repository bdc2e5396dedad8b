"""Table 1 and Section 6.3 of Nasr et al. 2023, to stand beside what is measured here. Theirs at 95 %."""

from research.nasr2023.methods import Method

EPSILONS = (1, 4, 8, 16)
COLUMNS = ("CIFAR-10 WRN-16", "CIFAR-10 ConvNet", "Purchase", "Random WRN-16")

TABLE_1: dict[Method, dict[int, tuple[float, float, float, float]]] = {
    "f-DP (CP)": {
        1: (0.75, 0.77, 0.78, 0.74),
        4: (3.40, 3.34, 3.54, 3.14),
        8: (5.80, 6.12, 6.40, 7.14),
        16: (11.14, 12.08, 12.42, 13.14),
    },
    "f-DP (ZB)": {
        1: (0.95, 0.94, 0.89, 0.90),
        4: (3.73, 3.80, 3.60, 3.52),
        8: (7.09, 7.12, 6.94, 7.12),
        16: (13.95, 13.80, 13.80, 15.14),
    },
    "(eps, delta)-DP (CP)": {
        1: (0.41, 0.45, 0.36, 0.35),
        4: (1.37, 1.80, 1.65, 1.14),
        8: (3.63, 3.85, 3.25, 4.09),
        16: (5.25, 6.22, 6.34, 6.96),
    },
    "(eps, delta)-DP (ZB)": {
        1: (0.62, 0.62, 0.57, 0.61),
        4: (2.65, 2.69, 2.45, 2.75),
        8: (5.07, 5.15, 4.65, 5.09),
        16: (5.25, 6.22, 6.34, 6.96),
    },
    "eps-DP (Katz)": {
        1: (0.49, 0.51, 0.46, 0.41),
        4: (1.65, 1.95, 2.05, 2.14),
        8: (4.17, 3.95, 4.24, 4.15),
        16: (7.52, 7.63, 7.69, 8.01),
    },
}
"""Table 1: the theoretical epsilon, and the lower bound in each column, delta = 1e-5."""

FAULT_TRUE_EPSILONS = (1.57, 2.17)
"""True epsilons with noise too small: one that f-DP is said to detect, and one that the other methods still miss."""

CLIPPING_FAULT_EPSILON = 35.0
"""Least epsilon that f-DP shows of clipping after averaging; the other methods find less than 10."""
