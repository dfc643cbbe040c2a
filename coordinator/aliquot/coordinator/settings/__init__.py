"""From arguments, environment and files to the parts that a coordinator is made of."""
