"""HTTP over the data plane: routes, problems, authentication. Nothing here decides anything about privacy."""
