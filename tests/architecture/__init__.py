"""The promises of the code's shape: import arrows, purity of the engine, documented names."""
