"""Skills: instructions that an agent reads when it needs them."""
