"""The engines: which there are, how they are, who knows whom."""
