"""What the schema of a tool says about its arguments."""
