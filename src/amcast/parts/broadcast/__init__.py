"""Generic broadcast: total order only between messages that conflict."""
