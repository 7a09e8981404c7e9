"""Which family real answer lengths follow, and how heavy their tails are."""
