"""Pages, drawings, plots and LaTeX tables: how reports look."""
