"""Python processes beside the driver: lanes, readers of sources and loaders of job files, forked from one that has imported everything."""
