"""Ray is an extra; CI installs it."""
