"""Model repository: manifests, graph emitters, the builder and its evidence."""
