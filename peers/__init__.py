"""The asynchronous shell: moves bytes, watches processes, decides nothing."""
