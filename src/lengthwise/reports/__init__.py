"""Tables and plots for people; what they show is computed elsewhere."""
