"""What every room needs, and nothing of any room."""
