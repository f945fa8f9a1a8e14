"""The engine, and nothing that belongs to one method."""
