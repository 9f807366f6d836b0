"""The six transformations of the paper: each says why it does not apply, rewrites a program, and finds its targets."""
