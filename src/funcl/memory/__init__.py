"""What is kept of finished tasks, how it is chosen, and how context points are drawn from it."""
