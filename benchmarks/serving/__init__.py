"""What private, charged, durable answers cost beside public ones: `make bench`."""
