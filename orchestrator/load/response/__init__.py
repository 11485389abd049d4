"""From the bytes of a response to times, token counts and an outcome."""
