"""The loops of scripts/campaign: each runs a slice, and returns what the slice found."""
