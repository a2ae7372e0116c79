"""Programs that amcast does not install and some tests need: a browser, and the servers that it is compared with."""
