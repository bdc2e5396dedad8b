"""The planner's measurements on tables, and its regret on those that it does not know."""
