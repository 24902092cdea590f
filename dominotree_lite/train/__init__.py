"""Training a drafter for a target. The core never imports this."""
