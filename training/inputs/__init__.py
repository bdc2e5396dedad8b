"""Reading private records together with what their owner declares about them."""
