"""Pictures: graphs coloured by layout, which rank holds what, what ran when, how long it took."""
