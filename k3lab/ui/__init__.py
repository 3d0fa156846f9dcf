"""What a reader turns over by hand: plain functions that give HTML and figures, and ipywidgets controls over them.

The functions need no front end; only `k3lab.ui.widgets` needs ipywidgets.
"""
