"""The published method of Lu et al. 2022, built as printed: a claim to be reproduced and tested, not a proof.

Z. Lu, H. J. Asghar, M. A. Kaafar, D. Webb and P. Dickinson, "A Differentially Private Framework for Deep Learning
with Convexified Loss Functions", IEEE Transactions on Information Forensics and Security 17, 2022.
"""
