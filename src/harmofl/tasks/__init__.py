"""What is learned: the paper's three tasks, and two for a hospital's own images."""
