"""The paper's settings, tables and figures as data, and what runs them."""
