"""The planner beside other libraries' private classifiers, on the same tables under the same budget."""
