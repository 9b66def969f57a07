"""One stage alone, from the command's options: a recipe that can be saved and extended."""
