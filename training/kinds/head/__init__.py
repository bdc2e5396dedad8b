"""The certified head: each of its answers gets noise and is paid for."""
