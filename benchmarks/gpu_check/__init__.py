"""One command that settles on a GPU what was built and tested without one: `make gpu-check`."""
