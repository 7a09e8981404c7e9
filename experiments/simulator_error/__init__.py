"""The simulator beside what was measured on a real engine: what it foretold, and how steady the machine was."""
