"""The pages for people: static files that need no network, no build and no state of the service's."""
