"""FastCast: BaseCast with guessed timestamps."""
