"""Models that are private themselves: paid for once, every answer is post-processing and costs nothing."""
