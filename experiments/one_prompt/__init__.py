"""Many answers to one prompt, and which family of lengths describes them: the first figure of the TIE paper."""
