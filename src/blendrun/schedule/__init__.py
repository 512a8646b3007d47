"""From requests and their tree to a plan, and from a plan to the batch of a step."""
