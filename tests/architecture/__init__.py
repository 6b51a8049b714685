"""What the shape of the code promises: import arrows, purity of the engine, documented names."""
