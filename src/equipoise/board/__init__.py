"""Runs and plans as pages to look at: one HTML file that needs nothing else, or a live page in the browser."""
