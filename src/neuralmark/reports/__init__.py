"""Pages for people: pure functions from records to self-contained HTML with inline SVG."""
