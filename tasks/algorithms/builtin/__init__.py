"""The algorithms that come with the project, one file each, named as in `train.algorithm`."""
