"""Operations on a whole cluster: local processes, status, rolling restarts, changes of members, replacement."""
