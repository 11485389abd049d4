"""The page: one HTML file that shows the answer and judges it again under other limits."""
