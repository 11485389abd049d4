"""One file per command: parse, call, print. Beside them stand the options that several share."""
