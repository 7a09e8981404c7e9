"""Each table and figure of the source papers, as code that sets ours beside theirs."""
