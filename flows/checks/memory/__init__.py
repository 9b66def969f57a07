"""Whether what a plan's stages hold fits the devices, and the smallest change that helps."""
