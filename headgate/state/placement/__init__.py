"""Which lane and which host each slice of keyed state belongs to, pure (ChronoStream, ICDE '15, section III)."""
