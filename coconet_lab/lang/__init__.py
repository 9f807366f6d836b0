"""The language users write programs in: values, operations, programs."""
