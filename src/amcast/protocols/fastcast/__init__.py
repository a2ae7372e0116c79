"""FastCast: BaseCast whose leaders guess their groups' timestamps and so save two message delays."""
