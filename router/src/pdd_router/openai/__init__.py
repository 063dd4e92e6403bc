"""OpenAI's wire forms: pure parsing and rendering, no I/O."""
