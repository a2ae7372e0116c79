"""Skeen's protocol: every destination proposes a timestamp, the highest one is final. The smallest protocol here."""
