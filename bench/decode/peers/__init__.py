"""Other runtimes behind one interface, each a program for an environment of its own.

These modules run where nothing of this project is installed: they import the standard library,
numpy, the runtime they drive, and each other.
"""
