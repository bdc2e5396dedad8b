"""The mechanisms that make an answer private, with their noise laws and selection. No I/O.

Imports only `accounting`.
"""
