"""Side-by-side benchmarks against named peers: `python -m bench`."""
