"""How an answer is made private: noise laws, selection and the mechanisms. No I/O.

Imports only `accounting`.
"""
