"""What accounting knows of each format: a module of its name, which declares an `AccountedFormat`."""
