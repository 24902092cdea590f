"""Training a drafter: the target writes the text, blocks are learnt from it. The core never imports this."""
