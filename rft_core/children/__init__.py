"""Runs processes as children of one parent, none of which outlives it."""
