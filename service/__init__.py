"""Online: HTTP routes over a transport-free core. Imports `training`, `mechanisms` and `accounting`."""
