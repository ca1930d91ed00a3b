"""The nouns: frozen values that know nothing of storage, clocks or networks."""
