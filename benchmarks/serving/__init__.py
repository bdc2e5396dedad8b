"""The speed of private, charged, durable answers beside that of public ones: `make bench`."""
