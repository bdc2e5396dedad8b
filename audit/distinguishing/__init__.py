"""Distinguishing audits: which of two neighbouring models gave these answers, and with what confidence can one tell?"""
