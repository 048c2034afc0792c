"""The backends behind ``Buffer``: one interface (``base``), one module each."""
