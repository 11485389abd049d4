"""What requests contain; one file per kind."""
