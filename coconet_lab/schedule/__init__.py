"""A program and the steps taken on it: replayed, undone, compared, written down, proven."""
