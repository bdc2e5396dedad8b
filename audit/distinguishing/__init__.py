"""Distinguishing audits: which of two neighbouring models gave these answers, and how surely can it be told?"""
