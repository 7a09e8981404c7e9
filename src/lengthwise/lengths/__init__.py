"""What we believe about the length of an answer: immutable values, pure mathematics, no files."""
