"""An engine that computes nothing: real HTTP streams whose timing comes from a stated model (docs/emulator.md)."""
