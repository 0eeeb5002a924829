"""What several formats of other projects use."""
