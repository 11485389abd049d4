"""Arrow schemas, immutable Parquet, commit manifests."""
