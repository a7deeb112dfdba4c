"""Recipes: complete models with their data, training and export; one flat file a recipe."""
