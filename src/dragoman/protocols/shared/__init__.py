"""What several wire APIs have in common."""
