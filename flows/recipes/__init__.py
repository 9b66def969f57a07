"""Recipes that are shipped, and the programs that they name."""
